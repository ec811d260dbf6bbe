from tilelink.ir.plan import Plan, Verdict


def verify(plan: Plan) -> Verdict:
    return Verdict(True, ())
