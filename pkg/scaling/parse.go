package scaling

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Fault describes an error in a policy.
type Fault struct {
	// Field is a path within the policy, with JSON names: "metrics[0].target".
	Field, Message, Fix string
}

func (f *Fault) Error() string { return f.Field + ": " + f.Message + ": " + f.Fix }

// Defaults of a policy.
const (
	defaultUpWindow   = time.Minute
	defaultUpEvery    = 30 * time.Second
	defaultDownWindow = 5 * time.Minute
	defaultDownEvery  = time.Minute
	defaultZeroAfter  = 15 * time.Minute
	defaultPercentile = 95
)

// In returns the policy of a region, given by name or ID. The region's override is merged in, and all overrides are
// removed.
func In(p *windlassv1.ScalingPolicy, region string) *windlassv1.ScalingPolicy {
	if p == nil {
		return nil
	}
	out := proto.CloneOf(p)
	out.Overrides = nil
	for i, r := range p.GetRoles() {
		in := In(policyOf(p, r), region)
		out.Roles[i].Min, out.Roles[i].Max, out.Roles[i].Overrides = in.Min, in.Max, nil
	}
	for _, o := range p.GetOverrides() {
		if !slices.Contains(o.GetRegions(), region) && !slices.Contains(o.GetRegionIds(), region) {
			continue
		}
		if o.Min != nil {
			out.Min = new(o.GetMin())
		}
		if o.Max != nil {
			out.Max = o.GetMax()
		}
		if o.Initial != nil {
			out.Initial = new(o.GetInitial())
		}
	}
	return out
}

// Check returns the first error in the policy, including its overrides and roles, or nil.
func Check(p *windlassv1.ScalingPolicy) *Fault {
	if len(p.GetRoles()) > 0 {
		return checkRoles(p)
	}
	return checkPolicy(p)
}

func checkPolicy(p *windlassv1.ScalingPolicy) *Fault {
	if _, fault := New(p, ""); fault != nil {
		return fault
	}
	return checkOverrides(p, nil)
}

// checkOverrides returns the first error in the overrides of an app's policy, or of a role's policy with its couple.
func checkOverrides(p *windlassv1.ScalingPolicy, couple *Couple) *Fault {
	seen := map[string]int{}
	for i, o := range p.GetOverrides() {
		field := fmt.Sprintf("overrides[%d]", i)
		if o.Min == nil && o.Max == nil && o.Initial == nil {
			return &Fault{field, "the override changes nothing", "Set min, max or initial, or leave the override out."}
		}
		for _, region := range o.GetRegions() {
			if before, twice := seen[region]; twice {
				return &Fault{field + ".regions", fmt.Sprintf("region %s is in overrides[%d] already", region, before), "Name each region in one override."}
			}
			seen[region] = i
			if _, fault := newPolicy(p, region, couple); fault != nil {
				fault.Field = field + "." + fault.Field
				return fault
			}
		}
	}
	return nil
}

// New returns the policy for a region. For a policy with roles, use NewRoles.
func New(p *windlassv1.ScalingPolicy, region string) (Policy, *Fault) {
	return newPolicy(p, region, nil)
}

// newPolicy returns the policy of an app or a role for a region. couple is the couple of the role, or nil.
func newPolicy(p *windlassv1.ScalingPolicy, region string, couple *Couple) (Policy, *Fault) {
	m := In(p, region)
	out := Policy{Min: 1, Max: int(m.GetMax()), Advise: m.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE, Couple: couple}
	if m.Min != nil {
		out.Min = int(m.GetMin())
	}
	switch {
	case out.Max < 1:
		return out, &Fault{"max", "missing", "Set the maximum number of replicas in a region, for example 10."}
	case out.Min > out.Max:
		return out, &Fault{"min", fmt.Sprintf("%d is above max, which is %d", out.Min, out.Max), "Lower min, or raise max."}
	case out.Min > 0 && m.Zero != nil:
		return out, &Fault{"zero", fmt.Sprintf("the app never goes to zero, because min is %d", out.Min), "Set min to 0, or leave zero out."}
	}
	out.Initial = max(out.Min, 1)
	if m.Initial != nil {
		out.Initial = int(m.GetInitial())
		if out.Initial < out.Min || out.Initial > out.Max {
			return out, &Fault{"initial", fmt.Sprintf("%d is not between min and max, %d and %d", out.Initial, out.Min, out.Max), "Set it to a number between them, or leave it out."}
		}
	}
	if len(m.GetMetrics()) == 0 && couple == nil {
		return out, &Fault{"metrics", "missing", "Add one, for example {type: inFlight, target: 32}."}
	}
	if len(m.GetMetrics()) > MaxMetrics {
		return out, &Fault{"metrics", fmt.Sprintf("%d metrics", len(m.GetMetrics())), fmt.Sprintf("Set at most %d.", MaxMetrics)}
	}
	for i, given := range m.GetMetrics() {
		metric, fault := newMetric(given)
		if fault != nil {
			fault.Field = fmt.Sprintf("metrics[%d].%s", i, fault.Field)
			return out, fault
		}
		if slices.Contains(out.Metrics, metric) {
			return out, &Fault{fmt.Sprintf("metrics[%d]", i), "the same metric is listed twice", "Remove one of them."}
		}
		out.Metrics = append(out.Metrics, metric)
	}
	var fault *Fault
	if out.Up, fault = newPace(m.GetUp(), "up", Pace{defaultUpWindow, Step{Percent: 100}, defaultUpEvery}); fault != nil {
		return out, fault
	}
	if out.Down, fault = newPace(m.GetDown(), "down", Pace{defaultDownWindow, Step{Count: 1}, defaultDownEvery}); fault != nil {
		return out, fault
	}
	if out.Min == 0 {
		out.Zero = newZero(m.GetZero())
		if out.Zero.WakeTo > out.Max {
			return out, &Fault{"zero.wakeTo", fmt.Sprintf("%d is above max, which is %d", out.Zero.WakeTo, out.Max), "Lower wakeTo, or raise max."}
		}
	}
	for i, given := range m.GetSchedule() {
		entry, fault := newEntry(given, out)
		if fault != nil {
			fault.Field = fmt.Sprintf("schedule[%d].%s", i, fault.Field)
			return out, fault
		}
		out.Schedule = append(out.Schedule, entry)
	}
	return out, nil
}

// newZero returns when an app goes to zero, with the defaults.
func newZero(z *windlassv1.ScaleToZero) *Zero {
	return &Zero{After: orDuration(z.GetAfter(), defaultZeroAfter), WakeTo: max(int(z.GetWakeTo()), 1)}
}

// orDuration returns d, or otherwise if d is nil.
func orDuration(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.AsDuration()
}

func newPace(p *windlassv1.ScalingPace, field string, otherwise Pace) (Pace, *Fault) {
	out := Pace{Window: orDuration(p.GetWindow(), otherwise.Window), Step: otherwise.Step, Every: orDuration(p.GetEvery(), otherwise.Every)}
	if p.GetStep() == "" {
		return out, nil
	}
	text, percent := strings.CutSuffix(p.GetStep(), "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return out, &Fault{field + ".step", fmt.Sprintf("%q is not a step", p.GetStep()), `Write a number of replicas, for example 2, or a share, for example "50%".`}
	}
	out.Step = Step{Count: n}
	if percent {
		out.Step = Step{Percent: n}
	}
	return out, nil
}

// metricTypes maps the metric types of the API to the words of the app file.
var metricTypes = map[windlassv1.ScalingMetric_Type]MetricType{
	windlassv1.ScalingMetric_TYPE_IN_FLIGHT:           InFlight,
	windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND: RequestsPerSecond,
	windlassv1.ScalingMetric_TYPE_QUEUE:               Queue,
	windlassv1.ScalingMetric_TYPE_KV_CACHE:            KVCache,
	windlassv1.ScalingMetric_TYPE_CPU:                 CPU,
	windlassv1.ScalingMetric_TYPE_MEMORY:              Memory,
	windlassv1.ScalingMetric_TYPE_FIRST_TOKEN:         FirstToken,
	windlassv1.ScalingMetric_TYPE_LATENCY:             Latency,
	windlassv1.ScalingMetric_TYPE_PROMETHEUS:          Prometheus,
	windlassv1.ScalingMetric_TYPE_MODELS:              Models,
}

// Proto returns the API's value of the type.
func (t MetricType) Proto() windlassv1.ScalingMetric_Type {
	for value, word := range metricTypes {
		if word == t {
			return value
		}
	}
	return windlassv1.ScalingMetric_TYPE_UNSPECIFIED
}

// isTime reports whether the metric is a time that requests take.
func (t MetricType) isTime() bool { return t == FirstToken || t == Latency }

// IsTotal reports whether the value of the metric is a total of all replicas.
func (m Metric) IsTotal() bool {
	switch m.Type {
	case InFlight, RequestsPerSecond, Queue:
		return true
	case Prometheus:
		return m.Total
	case KVCache, CPU, Memory, FirstToken, Latency, Models:
	}
	return false
}

// TypeOf returns the type for a value of the API, or "" for an unknown value.
func TypeOf(t windlassv1.ScalingMetric_Type) MetricType { return metricTypes[t] }

func newMetric(given *windlassv1.ScalingMetric) (Metric, *Fault) {
	out := Metric{Type: metricTypes[given.GetType()], Query: given.GetQuery(), Total: given.GetKind() != windlassv1.ScalingMetric_KIND_LEVEL}
	if out.Type == "" {
		return out, &Fault{"type", "unknown metric", "Use inFlight, requestsPerSecond, queue, kvCache, cpu, memory, firstToken, latency, models or prometheus."}
	}
	if out.Type != Prometheus {
		out.Total = false
		if out.Query != "" || given.GetKind() != windlassv1.ScalingMetric_KIND_UNSPECIFIED {
			return out, &Fault{"query", "query and kind are only for metrics of type prometheus", "Leave them out, or set type to prometheus."}
		}
	} else if strings.TrimSpace(out.Query) == "" {
		return out, &Fault{"query", "missing", "Write a PromQL query. Its value is the metric."}
	}
	var fault *Fault
	if out.Target, fault = parseAmount(given.GetTarget(), "target", out.Type); fault != nil {
		return out, fault
	}
	if given.GetPercentile() != 0 && !out.Type.isTime() {
		return out, &Fault{"percentile", "only times have percentiles", "Leave it out, or use type firstToken or latency."}
	}
	if out.Type.isTime() {
		out.Percentile = defaultPercentile
		if p := given.GetPercentile(); p != 0 {
			if !(p > 0 && p < 100) {
				return out, &Fault{"percentile", fmt.Sprintf("%g is not a percentile", p), "Write a number between 0 and 100, for example 95."}
			}
			out.Percentile = p
		}
	}
	return out, parseThresholds(given, &out)
}

// parseThresholds parses the fields up and down into out.
func parseThresholds(given *windlassv1.ScalingMetric, out *Metric) (fault *Fault) {
	if given.GetUp() == "" && given.GetDown() == "" {
		return nil
	}
	if out.IsTotal() {
		return &Fault{"up", fmt.Sprintf("%s is a total of all replicas, and a total has no thresholds", out.Type), "Leave up and down out: target is the load of one replica."}
	}
	if given.GetUp() == "" || given.GetDown() == "" {
		return &Fault{"up", "only one of up and down is set", "Set both, or leave both out."}
	}
	if out.Up, fault = parseAmount(given.GetUp(), "up", out.Type); fault != nil {
		return fault
	}
	if out.Down, fault = parseAmount(given.GetDown(), "down", out.Type); fault != nil {
		return fault
	}
	if out.Down >= out.Up {
		return &Fault{"down", "down is not below up", "Lower down, or raise up."}
	}
	return nil
}

// ParseTarget parses a target of a metric of the type. Times are in seconds.
func ParseTarget(text string, of MetricType) (float64, *Fault) {
	return parseAmount(text, "target", of)
}

// parseAmount parses a target or threshold: a number, or a duration if the metric is a time.
func parseAmount(text, field string, of MetricType) (float64, *Fault) {
	if of.isTime() {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, &Fault{field, fmt.Sprintf("%q is not a time above 0", text), `Write a time, for example "500ms".`}
		}
		return d.Seconds(), nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0, &Fault{field, fmt.Sprintf("%q is not a number above 0", text), "Write the load that one replica should have, for example 32."}
	}
	switch {
	case of == KVCache && v > 1:
		return 0, &Fault{field, fmt.Sprintf("%q is above 1", text), "Write a share of the cache, for example 0.75."}
	case of == Models && (v < 1 || v > 100):
		return 0, &Fault{field, fmt.Sprintf("%q is not a percentage from 1 to 100", text), "Write the percentage of a server's room that models should need, for example 80."}
	case (of == CPU || of == Memory) && v < 1:
		return 0, &Fault{field, fmt.Sprintf("%q is below 1 percent", text), "Write a percentage of the instance's resources, for example 70."}
	}
	return v, nil
}

func newEntry(given *windlassv1.ScalingSchedule, p Policy) (Entry, *Fault) {
	out := Entry{Cron: given.GetCron(), Zone: time.UTC, For: given.GetFor().AsDuration()}
	// The cron parser also accepts TZ= and descriptors such as @every. They are refused, because timeZone sets
	// the zone, and an interval has no time of day.
	if strings.Contains(out.Cron, "=") || strings.HasPrefix(strings.TrimSpace(out.Cron), "@") {
		return out, &Fault{"cron", fmt.Sprintf("%q has words that are not supported", out.Cron), `Write five fields, for example "0 8 * * 1-5", and the zone as timeZone.`}
	}
	times, err := cron.ParseStandard(out.Cron)
	if err != nil {
		return out, &Fault{"cron", fmt.Sprintf("%q: %v", out.Cron, err), `Write minute, hour, day of the month, month and day of the week, for example "0 8 * * 1-5".`}
	}
	if name := given.GetTimeZone(); name != "" {
		if out.Zone, err = time.LoadLocation(name); err != nil || name == "Local" {
			return out, &Fault{"timeZone", fmt.Sprintf("%q names no time zone", name), "Write a name such as Europe/Berlin."}
		}
	}
	if times.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, out.Zone)).IsZero() {
		return out, &Fault{"cron", fmt.Sprintf("%q never happens", out.Cron), "Write a date that exists."}
	}
	out.times = times
	lo, hi := p.Min, p.Max
	if given.Min != nil {
		lo = int(given.GetMin())
		out.Min = &lo
	}
	if given.Max != nil {
		hi = int(given.GetMax())
		out.Max = &hi
	}
	switch {
	case out.Min == nil && out.Max == nil:
		return out, &Fault{"min", "the entry changes nothing", "Set min, or max, or both."}
	case lo > hi:
		return out, &Fault{"min", fmt.Sprintf("%d is above max, which is %d during this entry", lo, hi), "Lower min, or raise max."}
	case lo == 0 && p.Zero == nil:
		return out, &Fault{"min", "the app may not go to zero at other times", "Set the policy's min to 0, or the entry's min to 1 or more."}
	}
	return out, nil
}
