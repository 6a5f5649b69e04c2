// Package strategy holds the ways for a region to move from one version of an app to the next. It is
// pure. Each strategy has a file. A strategy says where a region stops on its way, how many replicas may
// exist, and how many may be missing. Next is the arithmetic that all strategies share: it says what the
// region does next.
//
// A new strategy is a value in the proto's enum, a file here that implements Strategy, a line in the
// table below, and scripts in ../testdata. TestStrategy checks what must be true for every strategy.
// docs/contributing lists the other places.
package strategy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/choices"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Strategy is one way for regions to move from one version to the next. The policies that its methods get
// are policies with this strategy.
type Strategy interface {
	// Fields returns the fields of a policy that this strategy uses and that not all strategies use, by
	// their names in app files.
	Fields() []string
	// SetDefaults fills in the fields that the policy leaves out, except those whose default depends on
	// the number of replicas.
	SetDefaults(p *windlassv1.RolloutPolicy)
	// Check returns the first fault of the policy's Fields, nil for none.
	Check(p *windlassv1.RolloutPolicy) *Fault
	// Describe returns the policy's Fields in words, empty for none.
	Describe(p *windlassv1.RolloutPolicy) string
	// Steps returns the points at which a region waits with both versions, in order. HasSteps reports whether
	// every policy of the strategy has any.
	Steps(p *windlassv1.RolloutPolicy) []Step
	HasSteps() bool
	// Bounds returns how many replicas beyond size may exist in a region of that size, and how many
	// fewer may serve.
	Bounds(p *windlassv1.RolloutPolicy, size int32, of Sizes) (surge, unavailable int32)
	// OldBounds returns how many replicas have to serve, and how many may exist, until the new version
	// has proven itself. It is called if the live version has more replicas than the new one, and the
	// bounds follow from the live version's number. Fewer replicas would be too few for the traffic if
	// the new version fails. 0, 0 for no such bounds.
	OldBounds(p *windlassv1.RolloutPolicy, of Sizes) (floor, ceiling int32)
	// Straighten removes the steps and pauses that judge a new version, because the way back to a proven
	// version does not need them. keepGates keeps approvals.
	Straighten(p *windlassv1.RolloutPolicy, keepGates bool)
	// Order returns how replicas of the two versions follow each other.
	Order() Order
}

// Order is how replicas of two versions follow each other in a region.
type Order int

const (
	// Overlap: replicas of both versions run at the same time, within the bounds.
	Overlap Order = iota
	// StopFirst: old replicas stop before new replicas start.
	StopFirst
	// InPlace: the new version takes over the instances of the old version, which the region replaces.
	InPlace
)

// Sizes are the wanted replicas of the live version and of the new one in a region.
type Sizes struct{ Old, New int32 }

// Step is a point on a region's way at which it waits with both versions.
type Step struct {
	// Weight is the share of the traffic that the new version gets, in percent. If it is 0, Replicas is
	// how many replicas the new version has.
	Weight, Replicas int32
	// Whole: the new version has all its replicas, and the weight is given at once.
	Whole bool
	// Manual: the region waits until a person promotes it; else for Pause.
	Manual bool
	Pause  time.Duration
	// Approval is the approval that the step needs in addition, nil for none.
	Approval *windlassv1.Approval
	// WaitField and ApprovalField are the fields of the policy that set the wait and the approval, as app
	// files name them.
	WaitField, ApprovalField string
}

// String is the step's text: "10 %", "2 replicas".
func (s Step) String() string {
	if s.Weight > 0 || s.Whole {
		return fmt.Sprintf("%d %%", s.Weight)
	}
	return plural.Count(s.Replicas, "replica")
}

// Fault is what is wrong with a policy, and what would be right. Field is within the policy.
type Fault struct{ Field, Message, Fix string }

// strategies has the strategies by the value that policies have.
var strategies = map[windlassv1.RolloutPolicy_Strategy]Strategy{
	windlassv1.RolloutPolicy_STRATEGY_ROLLING:    rolling{},
	windlassv1.RolloutPolicy_STRATEGY_RECREATE:   recreate{},
	windlassv1.RolloutPolicy_STRATEGY_CANARY:     canary{},
	windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN: blueGreen{},
	windlassv1.RolloutPolicy_STRATEGY_IN_PLACE:   inPlace{},
}

// Of returns the policy's strategy, by default rolling.
func Of(p *windlassv1.RolloutPolicy) Strategy {
	if s, ok := strategies[p.GetStrategy()]; ok {
		return s
	}
	return rolling{}
}

// Name returns the name of the policy's strategy as people write it, such as "blue-green".
func Name(p *windlassv1.RolloutPolicy) string {
	s := p.GetStrategy()
	if _, ok := strategies[s]; !ok {
		s = windlassv1.RolloutPolicy_STRATEGY_ROLLING
	}
	return nameOf(s)
}

func nameOf(s windlassv1.RolloutPolicy_Strategy) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.String(), "STRATEGY_")), "_", "-")
}

// All returns the strategies in the order of their values.
func All() []windlassv1.RolloutPolicy_Strategy { return slices.Sorted(maps.Keys(strategies)) }

// With returns the names of the strategies that have the field.
func With(field string) []string {
	return namesOf(func(s Strategy) bool { return slices.Contains(s.Fields(), field) })
}

// WithSteps names the strategies that have steps: "canary or blue-green".
func WithSteps() string { return strings.Join(namesOf(Strategy.HasSteps), " or ") }

func namesOf(is func(Strategy) bool) (names []string) {
	for _, s := range All() {
		if is(strategies[s]) {
			names = append(names, nameOf(s))
		}
	}
	return names
}

// NamesWithoutOverlap returns the names of the strategies that need no room for both versions, because
// old instances stop first or are replaced in place. The names are as in app files: "recreate or inPlace".
func NamesWithoutOverlap() string {
	var names []string
	for _, s := range All() {
		if strategies[s].Order() != Overlap {
			names = append(names, choices.Of(s))
		}
	}
	return strings.Join(names, " or ")
}

// Check returns the first fault in the fields that configure the policy's strategy, nil for none.
func Check(p *windlassv1.RolloutPolicy) *Fault {
	way := Of(p)
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"maxSurge", p.GetMaxSurge() != ""},
		{"maxUnavailable", p.GetMaxUnavailable() != ""},
		{"steps", len(p.GetSteps()) > 0},
		{"initialWeight", p.GetInitialWeight() != 0},
		{"approval", p.GetApproval() != nil},
		{"promotion", p.GetPromotion() != ""},
		{"retain", p.GetRetain() != nil},
	} {
		if !f.set || slices.Contains(way.Fields(), f.name) {
			continue
		}
		with := strings.Join(With(f.name), " or ")
		return &Fault{f.name, fmt.Sprintf("%s is not a field of strategy %s: it belongs to %s", f.name, Name(p), with), "Leave it out, or use strategy " + with + "."}
	}
	return way.Check(p)
}

// Describe returns the policy in one line, for the history.
func Describe(p *windlassv1.RolloutPolicy) string {
	if text := Of(p).Describe(p); text != "" {
		return Name(p) + " (" + text + ")"
	}
	return Name(p)
}

// base is what most strategies have in common.
type base struct{}

func (base) SetDefaults(*windlassv1.RolloutPolicy)      {}
func (base) Steps(*windlassv1.RolloutPolicy) []Step     { return nil }
func (base) HasSteps() bool                             { return false }
func (base) Straighten(*windlassv1.RolloutPolicy, bool) {}
func (base) Order() Order                               { return Overlap }

// Bounds returns the bounds that maxSurge and maxUnavailable set.
func (base) Bounds(p *windlassv1.RolloutPolicy, size int32, _ Sizes) (surge, unavailable int32) {
	return Bounds(p.GetMaxSurge(), p.GetMaxUnavailable(), size)
}

func (b base) OldBounds(p *windlassv1.RolloutPolicy, of Sizes) (floor, ceiling int32) {
	surge, unavailable := b.Bounds(p, of.Old, of)
	return of.Old - unavailable, of.Old + surge
}

// describeBounds returns maxSurge and maxUnavailable in words.
func describeBounds(p *windlassv1.RolloutPolicy) string {
	return fmt.Sprintf("maxSurge %s, maxUnavailable %s", cmp.Or(p.GetMaxSurge(), DefaultSurge), cmp.Or(p.GetMaxUnavailable(), DefaultUnavailable))
}

// checkBounds returns a fault if the bounds let nothing move.
func checkBounds(p *windlassv1.RolloutPolicy) *Fault {
	if isNone(p.GetMaxSurge()) && isNone(p.GetMaxUnavailable()) {
		return &Fault{"maxUnavailable", "maxSurge and maxUnavailable are both 0: no replica could ever start or stop", "Set one of them to 1 or more."}
	}
	return nil
}

// isNone reports whether the text, which is not empty, is a count or a share of 0.
func isNone(text string) bool {
	return text != "" && strings.Trim(text, "0%") == ""
}

// Manual is the text of a wait that a person ends.
const Manual = "manual"

// maxPause is the longest pause, and is as long as a wave may bake. A longer wait has to end with the
// decision of a person.
const maxPause = 7 * 24 * time.Hour

// checkWait returns a fault if the wait could not be read, or is too long.
func checkWait(wait time.Duration, err error, field, examples string) *Fault {
	if err != nil {
		return &Fault{field, err.Error(), "Write for example " + examples + "."}
	}
	if wait > maxPause {
		return &Fault{field, fmt.Sprintf("%s is longer than %s", wait, maxPause), "Use manual: somebody promotes it when it is time."}
	}
	return nil
}
