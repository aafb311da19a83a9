// Helpers of the page of an inspection and of the page of the server.
const $ = id => document.getElementById(id);
const make = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
const svg = (tag, attributes, text) => { const e = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const k in attributes) e.setAttribute(k, attributes[k]); if (text !== undefined) e.textContent = text; return e; };
const clamp = (x, a, b) => Math.min(b, Math.max(a, x));
