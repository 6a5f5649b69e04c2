package strategy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// blueGreen runs all replicas of the new version next to all of the old one, and then moves the
// traffic at once.
type blueGreen struct{ base }

// defaultRetain is long enough to notice a bad version. It is not longer, because the retained
// replicas hold accelerators and do no work.
const defaultRetain = 10 * time.Minute

func (blueGreen) Fields() []string {
	return []string{"initialWeight", "approval", "promotion", "retain"}
}

func (blueGreen) SetDefaults(p *windlassv1.RolloutPolicy) {
	p.Promotion = cmp.Or(p.Promotion, "auto")
	if p.Retain == nil {
		p.Retain = durationpb.New(defaultRetain)
	}
}

func (blueGreen) Check(p *windlassv1.RolloutPolicy) *Fault {
	after, _, err := ParsePromotion(p.GetPromotion())
	return checkWait(after, err, "promotion", "auto, auto after 10m or manual")
}

func (b blueGreen) Describe(p *windlassv1.RolloutPolicy) string {
	return fmt.Sprintf("%s at first, promotion %s", b.Steps(p)[0], cmp.Or(p.GetPromotion(), "auto"))
}

func (blueGreen) Steps(p *windlassv1.RolloutPolicy) []Step {
	after, manual, err := ParsePromotion(p.GetPromotion())
	return []Step{{
		Weight: p.GetInitialWeight(), Whole: true, Manual: manual || err != nil, Pause: after, Approval: p.GetApproval(),
		WaitField: "promotion", ApprovalField: "approval",
	}}
}

func (blueGreen) HasSteps() bool { return true }

// Bounds returns a surge with room for a second full set of replicas, of either version.
func (blueGreen) Bounds(_ *windlassv1.RolloutPolicy, size int32, of Sizes) (surge, unavailable int32) {
	return max(size, of.Old, of.New), 0
}

// OldBounds returns the old version's size as the floor. The ceiling leaves room for the new
// version's set in addition.
func (blueGreen) OldBounds(_ *windlassv1.RolloutPolicy, of Sizes) (floor, ceiling int32) {
	return of.Old, of.Old + of.New
}

func (blueGreen) Straighten(p *windlassv1.RolloutPolicy, keepGates bool) {
	p.Promotion = ""
	if !keepGates {
		p.Approval, p.InitialWeight = nil, 0
	}
}

// ParsePromotion parses a policy's promotion: what ends a region's wait while both versions
// run.
func ParsePromotion(text string) (after time.Duration, manual bool, err error) {
	if text == "" || text == "auto" || text == Manual {
		return 0, text == Manual, nil
	}
	delay, ok := strings.CutPrefix(text, "auto after ")
	if ok {
		after, err = time.ParseDuration(delay)
	}
	if !ok || err != nil || after < 0 {
		return 0, false, fmt.Errorf("%q is neither \"auto\" nor \"auto after\" a duration nor %q", text, Manual)
	}
	return after, false, nil
}
