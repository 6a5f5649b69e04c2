package strategy

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// rolling replaces replica by replica, within maxSurge and maxUnavailable.
type rolling struct{ base }

func (rolling) Fields() []string { return []string{"maxSurge", "maxUnavailable"} }

func (rolling) Check(p *windlassv1.RolloutPolicy) *Fault { return checkBounds(p) }

func (rolling) Describe(p *windlassv1.RolloutPolicy) string { return describeBounds(p) }
