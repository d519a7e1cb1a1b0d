"""Settings of DECL."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from now_builder.config import Strict


class DeclSettings(Strict):
    """DECL (Qin et al., ACM MM 2022): evidence of each match, as a Dirichlet distribution."""

    name: Literal["decl"] = "decl"
    margin: PositiveFloat = Field(
        0.2, description="Margin of the hinge, in units of the logit's hyperbolic tangent."
    )
    temperature: PositiveFloat = Field(0.1, description="Tau: evidence is exp(tanh(logit) / tau).")
    lambda_kl: NonNegativeFloat = Field(
        0.1, description="Lambda 2: weight of the divergence that takes evidence from non-matches."
    )
    lambda_hinge: NonNegativeFloat = Field(
        0.8, description="Lambda 1: weight of the hinge of clean pairs."
    )
    hardening: NonNegativeFloat = Field(
        0.025, description="Eta: by how much fewer negatives count in the hinge with each step."
    )
    fewest_negatives: PositiveInt = Field(
        5, description="Mu: hardest negatives that count in the end."
    )
    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Pairs among which a pair must be the likeliest to be clean, at most."
    )
