def cost() -> None:
    pass
