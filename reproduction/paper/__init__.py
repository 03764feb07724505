"""The paper's tables and figures, on networks that others trained and on those of `reproduction.families`.

An experiment is a module here with `PRESETS`, its settings by size, `SMALLER`, what is smaller than in the paper, and
`run(ledger, pictures, settings)`, which gives the rows of its file; `paper.runner` does the rest. Needs torch.
"""
