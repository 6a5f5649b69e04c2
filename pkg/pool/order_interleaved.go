package pool

// interleaved moves the roles in steps of their batches: after step k a role has min(k batch, n) new units. No role is
// more than one step ahead of the slowest role. If one more unit may exist, the old units of a step stay until every
// role has the new units of that step.
type interleaved struct{}

func (interleaved) InPlace(int) bool { return true }

func (interleaved) Bounds(roles []Progress) []Bound {
	reached := -1
	for _, r := range roles {
		if step := r.Ready / r.batchSize(); !r.isDone() && (reached < 0 || step < reached) {
			reached = step
		}
	}
	if reached < 0 {
		return fullBounds(roles)
	}
	out := make([]Bound, len(roles))
	for i, r := range roles {
		out[i].New = min(r.batchSize()*(reached+1), r.Units)
		left := out[i].New
		if r.Unavailable == 0 {
			left = min(r.batchSize()*reached, r.Units)
		}
		out[i].Old = r.Units - left
	}
	return out
}
