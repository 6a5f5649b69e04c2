package strategy

import (
	"cmp"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// inPlace lets the new version take over the old one's instances. The region replaces them one by
// one or in batches, and starts none in addition. It is for regions without a free accelerator.
type inPlace struct{ base }

func (inPlace) Fields() []string { return []string{"maxUnavailable"} }

func (inPlace) Check(p *windlassv1.RolloutPolicy) *Fault {
	if isNone(p.GetMaxUnavailable()) {
		return &Fault{
			"maxUnavailable", "maxUnavailable is 0, and in place nothing starts before something stops: no replica could ever be replaced",
			"Set it to 1 or more, or use strategy rolling with a maxSurge.",
		}
	}
	return nil
}

func (inPlace) Describe(p *windlassv1.RolloutPolicy) string {
	return "maxUnavailable " + cmp.Or(p.GetMaxUnavailable(), "1")
}

func (inPlace) Bounds(p *windlassv1.RolloutPolicy, size int32, _ Sizes) (surge, unavailable int32) {
	return Bounds("0", p.GetMaxUnavailable(), size)
}

func (s inPlace) OldBounds(p *windlassv1.RolloutPolicy, of Sizes) (floor, ceiling int32) {
	surge, unavailable := s.Bounds(p, of.Old, of)
	return of.Old - unavailable, of.Old + surge
}

func (inPlace) Order() Order { return InPlace }
