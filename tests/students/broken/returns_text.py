# expect attention: no_numbers
def attention(query, key, value):
    return "0.3 0.7"
