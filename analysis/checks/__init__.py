"""The properties of order, causality, calls and views: the oracle by definition, fast checkers, verdicts, witnesses."""
