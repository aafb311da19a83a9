# expect attention: wrong_arguments
def attention(query, key):
    return query @ key.T
