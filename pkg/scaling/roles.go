package scaling

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RolePolicy is how one role of a pool scales in one region.
type RolePolicy struct {
	Role string
	Policy
}

// NewRoles returns the policies of the roles of a pool for a region, in the order of the policy.
func NewRoles(p *windlassv1.ScalingPolicy, region string) ([]RolePolicy, *Fault) {
	out := make([]RolePolicy, 0, len(p.GetRoles()))
	for i, r := range p.GetRoles() {
		couple, fault := newCouple(r)
		if fault == nil {
			var policy Policy
			policy, fault = newPolicy(policyOf(p, r), region, couple)
			out = append(out, RolePolicy{r.GetRole(), policy})
		}
		if fault != nil {
			fault.Field = fmt.Sprintf("roles[%d].%s", i, fault.Field)
			return nil, fault
		}
	}
	return out, nil
}

// Overrides returns the overrides of the policy and of its roles.
func Overrides(p *windlassv1.ScalingPolicy) []*windlassv1.ScalingOverride {
	out := slices.Clone(p.GetOverrides())
	for _, r := range p.GetRoles() {
		out = append(out, r.GetOverrides()...)
	}
	return out
}

// policyOf returns the policy of a role.
func policyOf(p *windlassv1.ScalingPolicy, r *windlassv1.RoleScaling) *windlassv1.ScalingPolicy {
	return &windlassv1.ScalingPolicy{
		Min: r.Min, Max: r.GetMax(), Initial: r.Initial, Metrics: r.GetMetrics(), Up: r.GetUp(), Down: r.GetDown(), Schedule: r.GetSchedule(),
		Mode: p.GetMode(), Overrides: r.GetOverrides(),
	}
}

func newCouple(r *windlassv1.RoleScaling) (*Couple, *Fault) {
	c := r.GetCouple()
	if c == nil {
		return nil, nil
	}
	const fix = "Write the lowest and the highest number of instances for each instance of the other role, for example [0.5, 4]."
	if len(c.GetRatio()) != 2 {
		return nil, &Fault{"couple.ratio", fmt.Sprintf("%d numbers", len(c.GetRatio())), fix}
	}
	out := &Couple{Role: c.GetRole(), Low: c.GetRatio()[0], High: c.GetRatio()[1]}
	switch {
	case out.Role == "":
		return nil, &Fault{"couple.role", "missing", "Name the other role of the ratio."}
	case out.Role == r.GetRole():
		return nil, &Fault{"couple.role", fmt.Sprintf("role %q is coupled to itself", out.Role), "Name another role, or leave couple out."}
	case !(out.Low >= 0 && out.High > 0) || math.IsInf(out.High, 0):
		return nil, &Fault{"couple.ratio", fmt.Sprintf("[%g, %g] is not a range of ratios", out.Low, out.High), fix}
	case out.Low > out.High:
		return nil, &Fault{"couple.ratio", fmt.Sprintf("%g is above %g", out.Low, out.High), fix}
	case out.Low == 0 && len(r.GetMetrics()) == 0:
		return nil, &Fault{"couple.ratio", "without metrics the role follows the lower ratio, which is 0", "Set a ratio above 0, or add metrics."}
	}
	return out, nil
}

// checkRoles is Check for a policy with roles.
func checkRoles(p *windlassv1.ScalingPolicy) *Fault {
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"min", p.Min != nil},
		{"max", p.GetMax() != 0},
		{"initial", p.Initial != nil},
		{"metrics", len(p.GetMetrics()) > 0},
		{"up", p.Up != nil},
		{"down", p.Down != nil},
		{"schedule", len(p.GetSchedule()) > 0},
		{"overrides", len(p.GetOverrides()) > 0},
	} {
		if f.set {
			return &Fault{f.field, "the roles scale separately", "Set it in the entries of roles."}
		}
	}
	if p.GetZero().GetWakeTo() > 0 {
		return &Fault{"zero.wakeTo", "each role of a pool starts with a number of its own", "Leave it out, and set initial of the roles, which is min by default."}
	}
	index := map[string]int{}
	for i, r := range p.GetRoles() {
		at := fmt.Sprintf("roles[%d].", i)
		before, twice := index[r.GetRole()]
		switch {
		case r.GetRole() == "":
			return &Fault{at + "role", "missing", "Name a role of the app."}
		case twice:
			return &Fault{at + "role", fmt.Sprintf("role %q is in roles[%d] already", r.GetRole(), before), "Remove one of them."}
		case r.Min != nil && r.GetMin() < 1:
			return &Fault{at + "min", "without an instance of a role the pool would serve nothing", "Set it to 1 or more, or leave it out."}
		}
		for j, o := range r.GetOverrides() {
			field := fmt.Sprintf("%soverrides[%d].", at, j)
			if o.Initial != nil {
				return &Fault{field + "initial", "a role begins with the same number in every region", "Leave it out, or set min."}
			}
			if o.Min != nil && o.GetMin() < 1 {
				return &Fault{field + "min", "without an instance of a role the pool would serve nothing", "Set it to 1 or more."}
			}
		}
		index[r.GetRole()] = i
	}
	policies, fault := NewRoles(p, "")
	if fault != nil {
		return fault
	}
	for i, r := range p.GetRoles() {
		if fault := checkOverrides(policyOf(p, r), policies[i].Couple); fault != nil {
			fault.Field = fmt.Sprintf("roles[%d].%s", i, fault.Field)
			return fault
		}
	}
	return checkCouples(p, index)
}

// checkCouples fails if a couple names a role without an entry, or if couples form a circle. index has the roles'
// places in the policy.
func checkCouples(p *windlassv1.ScalingPolicy, index map[string]int) *Fault {
	for i, r := range p.GetRoles() {
		path := []string{r.GetRole()}
		for at := r; at.GetCouple() != nil; {
			to := at.GetCouple().GetRole()
			next, there := index[to]
			switch {
			case !there && at == r:
				return &Fault{
					fmt.Sprintf("roles[%d].couple.role", i), fmt.Sprintf("role %q has no entry in scaling.roles", to),
					"Name a role that has an entry, or add an entry for this role.",
				}
			case !there || slices.Contains(path[1:], to):
				at = nil // the fault belongs to another entry
				continue
			case to == r.GetRole():
				return &Fault{fmt.Sprintf("roles[%d].couple.role", i), "the couples form a circle: " + strings.Join(append(path, to), " -> "), "Remove one of the couples."}
			}
			path = append(path, to)
			at = p.GetRoles()[next]
		}
	}
	return nil
}

// Role is the input of DecideRoles for one role of a pool.
type Role struct {
	Name   string
	Policy *Policy
	Window *Window
	State  State
}

// DecideRoles returns how many instances each role of a pool should have, in the order of roles. It decides each role
// by its own policy. Then it raises roles that have too few instances for the ratio of a couple. A ratio never lowers
// a role.
func DecideRoles(roles []Role, now time.Time) []Decision {
	index := indexOf(roles)
	deciders := make([]decider, len(roles))
	for i, r := range roles {
		d := &deciders[i]
		*d = newDecider(r.Policy, r.Window, r.State, now)
		d.decideNumber()
		if c := r.Policy.Couple; len(r.Policy.Metrics) == 0 && c != nil {
			// A version may lack the other role, for example after a rollback. Then the number stays.
			if _, there := index[c.Role]; there {
				d.followMinimum()
			}
		}
	}
	applyRatios(deciders, roles)
	out := make([]Decision, len(roles))
	for i := range deciders {
		out[i] = deciders[i].toDecision()
	}
	return out
}

// indexOf returns the places of roles in the slice, by name.
func indexOf(roles []Role) map[string]int {
	index := map[string]int{}
	for i, r := range roles {
		index[r.Name] = i
	}
	return index
}

// applyRatios raises the roles that have too few instances for the ratios of couples.
func applyRatios(deciders []decider, roles []Role) {
	index := indexOf(roles)
	// The loop ends, because numbers only rise, and have maximums.
	for changed := true; changed; {
		changed = false
		for i, r := range roles {
			c := r.Policy.Couple
			if c == nil {
				continue
			}
			j, there := index[c.Role]
			if !there {
				continue
			}
			one, other := &deciders[i], &deciders[j]
			changed = one.raiseTo(ceilInt(c.Low*float64(other.out.Wanted))) || changed
			changed = other.raiseTo(ceilInt(float64(one.out.Wanted)/c.High)) || changed
		}
	}
}

func ceilInt(v float64) int { return int(min(math.Ceil(v-1e-9), math.MaxInt32)) }

// followMinimum sets the number of a role without metrics to its minimum, which the ratio of its couple then raises.
func (d *decider) followMinimum() {
	switch {
	case d.out.Limit == HoldLimit:
	case d.newest == nil:
		d.out.Limit = NoReport
	case d.isStarting():
		d.out.Limit = StartingLimit
	default:
		d.out.Wanted, d.out.Limit = d.clampTo(0, d.minimumReplicas())
	}
}

// raiseTo raises the number to n, as far as limits allow, and reports whether the number changed.
func (d *decider) raiseTo(n int) bool {
	if d.out.Limit == HoldLimit || n <= d.out.Wanted {
		return false
	}
	n, limit := d.clampTo(n, d.minimumReplicas())
	if limit == None {
		limit = Ratio
	}
	d.out.Limit = limit
	if n <= d.out.Wanted {
		return false
	}
	d.out.Wanted = n
	return true
}
