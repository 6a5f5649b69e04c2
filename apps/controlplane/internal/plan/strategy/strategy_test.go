package strategy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// drawPolicy draws a policy of the strategy that passes its check.
func drawPolicy(t *rapid.T, of windlassv1.RolloutPolicy_Strategy) *windlassv1.RolloutPolicy {
	fields := map[string]bool{}
	for _, f := range strategies[of].Fields() {
		fields[f] = true
	}
	p := &windlassv1.RolloutPolicy{Strategy: of}
	if fields["maxSurge"] {
		p.MaxSurge = rapid.SampledFrom([]string{"", "0", "1", "2", "25%", "100%"}).Draw(t, "maxSurge")
	}
	if fields["maxUnavailable"] {
		p.MaxUnavailable = rapid.SampledFrom([]string{"", "1", "2", "50%", "100%"}).Draw(t, "maxUnavailable")
	}
	drawn := []string{"maxSurge", "maxUnavailable", "steps", "promotion", "initialWeight", "approval", "retain"}
	require.Subset(t, drawn, strategies[of].Fields(), "drawPolicy draws every field")
	approval := func(label string) *windlassv1.Approval {
		if rapid.Bool().Draw(t, label) {
			return &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER}
		}
		return nil
	}
	if fields["steps"] {
		for weight := int32(0); weight < 90 && len(p.Steps) < 4; {
			weight += rapid.Int32Range(1, 30).Draw(t, "weight")
			p.Steps = append(p.Steps, &windlassv1.CanaryStep{
				Weight: min(weight, Full), Pause: rapid.SampledFrom([]string{"", "10s", Manual}).Draw(t, "pause"), Approval: approval("step's approval"),
			})
		}
	}
	if fields["promotion"] {
		p.Promotion = rapid.SampledFrom([]string{"", "auto", "auto after 10s", Manual}).Draw(t, "promotion")
		p.InitialWeight = rapid.SampledFrom([]int32{0, 5}).Draw(t, "initialWeight")
		p.Approval = approval("approval")
	}
	return p
}

// set gives a field of a policy a value that is not the default.
func set(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsList():
		m.Mutable(field).List().AppendMutable()
	case field.Kind() == protoreflect.MessageKind:
		m.Mutable(field)
	case field.Kind() == protoreflect.StringKind:
		m.Set(field, protoreflect.ValueOfString("1"))
	default:
		m.Set(field, protoreflect.ValueOfInt32(1))
	}
}

// TestStrategy checks for every strategy what the planner relies on.
func TestStrategy(t *testing.T) {
	for value, text := range windlassv1.RolloutPolicy_Strategy_name {
		of := windlassv1.RolloutPolicy_Strategy(value)
		if of == windlassv1.RolloutPolicy_STRATEGY_UNSPECIFIED {
			continue
		}
		t.Run(text, func(t *testing.T) {
			require.Contains(t, strategies, of, "it has a file and a line in the table")
			s := strategies[of]
			for _, f := range s.Fields() {
				other := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}
				m := other.ProtoReflect()
				field := m.Descriptor().Fields().ByJSONName(f)
				require.NotNil(t, field, "%s is a field of RolloutPolicy", f)
				set(m, field)
				require.NotNil(t, Check(other), "the list of Check has %s: other strategies refuse it", f)
			}
			rapid.Check(t, func(t *rapid.T) {
				p := drawPolicy(t, of)
				require.Nil(t, Check(p), "%v", p)
				require.Contains(t, Describe(p), Name(p))
				for _, f := range s.Fields() {
					bad := proto.CloneOf(p)
					m := bad.ProtoReflect()
					field := m.Descriptor().Fields().ByJSONName(f)
					if field.Kind() != protoreflect.StringKind || f == "maxSurge" || f == "maxUnavailable" { // these have a pattern in the proto
						continue
					}
					m.Set(field, protoreflect.ValueOfString("after lunch"))
					fault := Check(bad)
					require.NotNil(t, fault, "Check refuses %s that it cannot read", f)
					require.Equal(t, f, fault.Field)
				}

				s.SetDefaults(p)
				require.Nil(t, Check(p), "its defaults are no fault: %v", p)
				again := proto.CloneOf(p)
				s.SetDefaults(again)
				require.True(t, proto.Equal(p, again), "its defaults are final")

				require.Equal(t, s.HasSteps(), len(s.Steps(p)) > 0)
				var weight int32 = -1
				for _, step := range s.Steps(p) {
					require.True(t, step.Replicas == 0 || step.Weight == 0)
					require.Less(t, weight, step.Weight, "a new version's share only grows")
					require.LessOrEqual(t, step.Weight, Full)
					require.NotEmpty(t, step.String())
					require.NotEmpty(t, step.WaitField)
					require.NotEmpty(t, step.ApprovalField)
					weight = step.Weight
				}

				of := Sizes{Old: rapid.Int32Range(0, 8).Draw(t, "old"), New: rapid.Int32Range(0, 8).Draw(t, "new")}
				for _, size := range []int32{0, 1, of.Old, of.New} {
					surge, unavailable := s.Bounds(p, size, of)
					require.GreaterOrEqual(t, surge, int32(0))
					require.True(t, unavailable >= 0 && unavailable <= size, "%d of %d", unavailable, size)
					require.True(t, size == 0 || surge+unavailable > 0, "something can move")
				}
				if of.Old > of.New && of.New > 0 {
					floor, ceiling := s.OldBounds(p, of)
					require.True(t, floor >= 0 && floor <= of.Old)
					require.True(t, ceiling == 0 || ceiling >= of.Old)
				}

				for _, keepGates := range []bool{false, true} {
					straight := proto.CloneOf(p)
					s.Straighten(straight, keepGates)
					require.Nil(t, Check(straight), "%v", straight)
					for _, step := range Of(straight).Steps(straight) {
						require.Zero(t, step.Pause)
						require.False(t, step.Manual, "no person is asked to promote a proven version")
						require.True(t, keepGates || step.Approval == nil)
					}
				}
			})
		})
	}
}

// TestStrategy_Reaches: within the bounds of every strategy, a region that obeys ends with the new version alone.
func TestStrategy_Reaches(t *testing.T) {
	for of, s := range strategies {
		if s.Order() == InPlace {
			continue // the region replaces, and the planner waits
		}
		t.Run(nameOf(of), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p, size := drawPolicy(t, of), rapid.Int32Range(2, 6).Draw(t, "size")
				l := RegionPlan{Size: size, Need: size, Recreate: s.Order() == StopFirst}
				l.Surge, l.Unavailable = s.Bounds(p, size, Sizes{Old: size, New: size})
				r := newRegion(l, size)
				for i := 0; !r.l.Alone() || !r.l.Serves(); i++ {
					require.Less(t, i, 200, "%+v", r.l)
					r.step(t)
					r.settle()
				}
			})
		})
	}
}

func TestCheck_NamesTheFieldAndTheStrategiesThatHaveIt(t *testing.T) {
	p := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE, MaxSurge: "1"}
	require.Equal(t, &Fault{"maxSurge", "maxSurge is not a field of strategy recreate: it belongs to rolling or canary", "Leave it out, or use strategy rolling or canary."}, Check(p))
	p = &windlassv1.RolloutPolicy{MaxSurge: "0%", MaxUnavailable: "0"}
	require.Equal(t, "maxUnavailable", Check(p).Field)
	p = &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 10, Pause: "240h"}}}
	require.Equal(t, "steps[0].pause", Check(p).Field)
	require.Equal(t, "rolling", Name(&windlassv1.RolloutPolicy{}), "by default")
	require.Equal(t, 10*time.Minute, defaultRetain)
}

func TestStrategies_NameWhatNeedsNoRoomForBoth(t *testing.T) {
	require.Equal(t, "recreate or inPlace", NamesWithoutOverlap())
	require.Equal(t, "canary or blue-green", WithSteps())
}
