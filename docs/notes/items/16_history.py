# History, names and dates
import regard

# %% N92
# Every mechanism names its paper: attention 2015 (Bahdanau, Luong, Xu), the Transformer 2017 (Vaswani).
# $ regard compare --list

# %% N93
# Translation came first, captions second: the numbers of the preprints say so (docs/errata.md).
print(
    sorted(
        {"1409.0473": "Bahdanau et al., translation", "1502.03044": "Xu et al., captions", "1508.04025": "Luong et al."}.items()
    )
)

# %% N94
# Letters differ from note to note; docs/errata.md has the table, and regard.reference writes formulas in the letters of the
# notes.
print(regard.reference.luong_step.__doc__)
print(regard.reference.bahdanau_step.__doc__)
