# expect file: no_function
def attentoin(query, key, value):
    return value
