// node translate.mjs MODULES FOLDER NAME: prints the greedy translation by transformers.js of each line of standard input.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, folder, name] = process.argv.slice(2);
const path = createRequire(`${modules}/`).resolve('@huggingface/transformers');
const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = await import(pathToFileURL(path));
env.allowRemoteModels = false;
env.localModelPath = folder;
console.warn = () => {};
const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await AutoModelForSeq2SeqLM.from_pretrained(name, { dtype: 'fp32', device: 'cpu' });
for (const line of readFileSync(0, 'utf-8').split('\n').filter(Boolean)) {
  const ids = await model.generate({ ...tokenizer(line), num_beams: 1, do_sample: false, max_new_tokens: 24 });
  const output = ids.tolist()[0].map(Number);
  console.log(JSON.stringify({ source: tokenizer(line).input_ids.tolist()[0].map(Number), output }));
}
