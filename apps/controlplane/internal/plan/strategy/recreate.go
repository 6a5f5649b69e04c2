package strategy

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// recreate stops the old version before the new one starts, for regions without capacity for both.
type recreate struct{ base }

func (recreate) Fields() []string { return nil }

func (recreate) Check(*windlassv1.RolloutPolicy) *Fault { return nil }

func (recreate) Describe(*windlassv1.RolloutPolicy) string { return "" }

func (recreate) Bounds(_ *windlassv1.RolloutPolicy, size int32, _ Sizes) (surge, unavailable int32) {
	return 0, size
}

// OldBounds returns no bounds, because all old replicas stop in any case.
func (recreate) OldBounds(*windlassv1.RolloutPolicy, Sizes) (floor, ceiling int32) { return 0, 0 }

func (recreate) Order() Order { return StopFirst }
