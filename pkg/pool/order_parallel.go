package pool

// parallel moves all roles at once, each by itself.
type parallel struct{}

func (parallel) InPlace(int) bool { return true }

func (parallel) Bounds(roles []Progress) []Bound { return fullBounds(roles) }
