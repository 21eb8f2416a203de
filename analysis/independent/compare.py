"""Comparison of the independent opinions with the product's verdicts: where they differ, one of the two is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analysis.checks.properties import Finding, Property, Verdict, merge
from analysis.independent.judge import Opinion, judge_run
from analysis.inputs import RunInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One property of a run: the product's result (`summary.json`), and the opinion of the SQL."""

    name: str
    is_promised: bool
    verdict: Verdict
    checked: int
    witness: str
    opinion: Opinion

    @property
    def agrees(self) -> bool:
        return agrees(self.verdict, self.checked, self.opinion)

    @property
    def why(self) -> str:
        """First witness of either side, else the reason of an unknown, else the difference."""
        if self.witness or self.opinion.witness or self.opinion.reason:
            return self.opinion.witness or self.witness or self.opinion.reason
        return "" if self.agrees else f"{self.checked} checked by the product, {self.opinion.checked} by the SQL"

    def as_dict(self) -> dict[str, Any]:
        opinion = asdict(self.opinion) | {"verdict": self.opinion.verdict.value}
        product = {"verdict": self.verdict.value, "checked": self.checked, "witness": self.witness}
        return {"promised": self.is_promised, "product": product, "independent": opinion, "agrees": self.agrees}


def agrees(verdict: Verdict, checked: int, opinion: Opinion) -> bool:
    """Whether the verdicts are equal and, unless they are unknown, the numbers of items checked: a check that overlooks
    half of a correct run gives the same verdict.
    """
    return verdict is opinion.verdict and (verdict is Verdict.UNKNOWN or checked == opinion.checked)


def disagreements(findings: Mapping[Property, Finding], opinions: Mapping[Property, Opinion]) -> list[str]:
    """A sentence for each property of one history on which the two disagree."""
    return [
        f"{kind.value}: {_verdict_text(finding.verdict, finding.checked)} by the product, "
        f"{_verdict_text(opinions[kind].verdict, opinions[kind].checked)} by the SQL"
        for kind, finding in findings.items()
        if not agrees(finding.verdict, finding.checked, opinions[kind])
    ]


def compare_run(inputs: RunInputs, summary: Mapping[str, Any]) -> list[Compared]:
    """Comparison of every known property in the summary of an analysed run. Raises AnalysisError."""
    known = {kind.value for kind in Property}
    entries = {Property(name): entry for name, entry in summary.get("properties", {}).items() if name in known}
    opinions = judge_run(inputs, entries)
    return [
        Compared(
            name=kind.value,
            is_promised=entry["promised"],
            verdict=Verdict(entry["verdict"]),
            checked=entry["checked"],
            witness=(entry["witness"] or {}).get("sentence", ""),
            opinion=opinions[kind],
        )
        for kind, entry in entries.items()
    ]


def overall(compared: Iterable[Compared], verdict: Verdict) -> Verdict:
    """FAIL if the two disagree about any property, else the worst of both sides' verdicts on the run and its promises.
    `verdict`: the product's, of the whole run.
    """
    rows = list(compared)
    disputed = [Verdict.FAIL for row in rows if not row.agrees]
    return merge([verdict, *disputed, *(row.opinion.verdict for row in rows if row.is_promised)])


def _verdict_text(verdict: Verdict, checked: int) -> str:
    return f"{verdict.value} ({checked} checked)"
