# expect attention: wrong_arguments
def attention(query, key, value, mask, temperature, alpha):
    return query
