package scenario

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/chart"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// followSample is the state of the app in a region at a time.
type followSample struct {
	// at is the time since the load began.
	at   time.Duration
	load loadNow
	// wanted is the number of replicas of the newest decision, and limit is the limit that the decision names. ready
	// is the number of ready replicas of the versions that have traffic.
	wanted, ready int
	limit         string
	// rolling reports whether a rollout is in flight.
	rolling bool
	// versions are the versions that have replicas or traffic, by number.
	versions map[int32]followVersion
}

// followVersion is the state of a version in a region.
type followVersion struct{ replicas, ready, weight int }

// followSpan is a part of a run: a step of the load, or a rollout.
type followSpan struct {
	name     string
	from, to time.Duration
	// clients is the load of one region, in clients. It is 0 for a rollout.
	clients float64
}

// samplesIn returns the samples of the span.
func (s followSpan) samplesIn(samples []followSample) []followSample {
	from, _ := slices.BinarySearchFunc(samples, s.from, func(a followSample, at time.Duration) int { return int(a.at - at) })
	to, _ := slices.BinarySearchFunc(samples, s.to, func(a followSample, at time.Duration) int { return int(a.at - at) })
	return samples[from:to]
}

// verdict is what the samples of a span show.
type verdict struct {
	// turns is how often wanted changed its direction.
	turns int
	// recovered is the time from the span's begin until p95 of the first token stayed at the target or below: 0 if it was
	// never above. back is false if it was above at the end.
	recovered time.Duration
	back      bool
	// worst is the highest p95.
	worst time.Duration
	last  followSample
	most  int
	// raised and lowered count the increases and decreases of wanted while a rollout was in flight. loweredAfter
	// counts the decreases of wanted without a rollout.
	raised, lowered, loweredAfter int
}

// judgeSpan returns the verdict on a span, whose samples must not be empty.
func judgeSpan(samples []followSample, span followSpan, target time.Duration) verdict {
	v := verdict{back: true}
	direction, before := 0, samples[0].wanted
	for i, s := range samples {
		if s.load.known {
			if v.back = s.load.p95 <= target; !v.back {
				// It is above until the next sample.
				v.recovered = span.to - span.from
				if i+1 < len(samples) {
					v.recovered = samples[i+1].at - span.from
				}
			}
			v.worst = max(v.worst, s.load.p95)
		}
		change := s.wanted - before
		if change*direction < 0 {
			v.turns++
		}
		switch {
		case change > 0:
			direction = 1
			if s.rolling {
				v.raised++
			}
		case change < 0 && s.rolling:
			direction = -1
			v.lowered++
		case change < 0:
			direction = -1
			v.loweredAfter++
		}
		before = s.wanted
		v.most = max(v.most, s.wanted)
	}
	v.last = samples[len(samples)-1]
	return v
}

// neededReplicas returns how many replicas a region needs for a load, if each has followTarget of it.
func neededReplicas(load float64, least int) int {
	return min(max(int(math.Ceil(load/followTarget-1e-9)), least), followMax)
}

// belowFloor describes the first sample with too few ready replicas. It returns "" if there is none. The floor at a
// time is the number of replicas that were ready before and have been wanted since, and at least least. margin is the
// smallest difference between ready and least.
func belowFloor(samples []followSample, least int) (wrong string, margin int) {
	margin = math.MaxInt
	held := 0
	for _, s := range samples {
		margin = min(margin, s.ready-least)
		if floor := max(least, min(held, s.wanted)); s.ready < floor && wrong == "" {
			wrong = fmt.Sprintf("after %.1f s %d replicas that have traffic are ready, below the floor of %d (%d wanted, %s)", s.at.Seconds(), s.ready, floor, s.wanted, s.showVersions())
		}
		for number, v := range s.versions {
			if v.weight > 0 && v.ready == 0 && wrong == "" {
				wrong = fmt.Sprintf("after %.1f s v%d has %d percent of the traffic and no ready replica (%s)", s.at.Seconds(), number, v.weight, s.showVersions())
			}
		}
		held = min(max(held, s.ready), s.wanted)
	}
	return wrong, margin
}

// showVersions lists the versions for a person: "v1 2 of 3 ready 60 %".
func (s followSample) showVersions() string {
	var out []string
	for number, v := range s.versions {
		out = append(out, fmt.Sprintf("v%d %d of %d ready %d %%", number, v.ready, v.replicas, v.weight))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// followSeries are the samples of a run.
type followSeries struct {
	title string
	// regions are in the order of samples.
	regions []string
	samples [][]followSample
	spans   []followSpan
	target  time.Duration
}

// rateOver is the time over which the rate of sent requests is measured.
const rateOver = 3 * time.Second

// sentPerSecond returns the rate of sent requests, per second, before sample i.
func sentPerSecond(samples []followSample, i int) float64 {
	from := i
	for from > 0 && samples[i].at-samples[from].at < rateOver {
		from--
	}
	if from == i {
		return 0
	}
	return float64(samples[i].load.sent-samples[from].load.sent) / (samples[i].at - samples[from].at).Seconds()
}

// toCSV returns the series as a table with a line for each sample.
func (f *followSeries) toCSV() ([]byte, error) {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	lines := [][]string{{"seconds", "region", "span", "load_clients", "sent_per_second", "waiting", "wanted", "ready", "p95_first_token_ms", "limit", "rolling", "versions"}}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for i, samples := range f.samples {
		for n, s := range samples {
			p95 := ""
			if s.load.known {
				p95 = number(math.Round(measure.Millis(s.load.p95)))
			}
			name := ""
			for _, span := range f.spans {
				if s.at >= span.from && s.at < span.to {
					name = span.name
				}
			}
			lines = append(lines, []string{
				strconv.FormatFloat(s.at.Seconds(), 'f', 2, 64), f.regions[i], name, number(s.load.perSecond), strconv.FormatFloat(sentPerSecond(samples, n), 'f', 1, 64), strconv.Itoa(s.load.waiting),
				strconv.Itoa(s.wanted), strconv.Itoa(s.ready), p95, s.limit, strconv.FormatBool(s.rolling), s.showVersions(),
			})
		}
	}
	err := w.WriteAll(lines)
	return out.Bytes(), err
}

// chartOf returns the plot of the series.
func (f *followSeries) chartOf() chart.Chart {
	out := chart.Chart{Title: f.title}
	load := chart.Panel{Label: "load (clients = requests/s)"}
	replicas := chart.Panel{Label: "replicas"}
	p95 := chart.Panel{Label: "p95 of the first token (ms)", Log: true}
	end := 0.0
	line := func(of string, i, color int, dashed, steps bool, value func(samples []followSample, n int) float64) chart.Line {
		l := chart.Line{Name: of, Color: chart.Color(color), Dashed: dashed, Steps: steps}
		if len(f.regions) > 1 {
			l.Name += ", " + f.regions[i]
		}
		for n, s := range f.samples[i] {
			l.Points = append(l.Points, chart.Point{Seconds: s.at.Seconds(), Value: value(f.samples[i], n)})
			end = max(end, s.at.Seconds())
		}
		return l
	}
	for i := range f.regions {
		of := func(value func(s followSample) float64) func([]followSample, int) float64 {
			return func(samples []followSample, n int) float64 { return value(samples[n]) }
		}
		load.Lines = append(load.Lines,
			line("load", i, 2*i, false, true, of(func(s followSample) float64 { return s.load.perSecond })),
			line("sent", i, 2*i+1, true, false, sentPerSecond))
		replicas.Lines = append(replicas.Lines,
			line("wanted", i, 2*i, false, true, of(func(s followSample) float64 { return float64(s.wanted) })),
			line("ready", i, 2*i+1, true, true, of(func(s followSample) float64 { return float64(s.ready) })))
		p95.Lines = append(p95.Lines, line("p95", i, 2*i, false, false, of(func(s followSample) float64 {
			if !s.load.known {
				return math.NaN()
			}
			return measure.Millis(s.load.p95)
		})))
	}
	target := measure.Millis(f.target)
	p95.Lines = append(p95.Lines, chart.Line{Name: "target", Color: 6, Dashed: true, Points: []chart.Point{{Seconds: 0, Value: target}, {Seconds: end, Value: target}}})
	out.Panels = []chart.Panel{load, replicas, p95}
	for _, span := range f.spans {
		out.Marks = append(out.Marks, chart.Mark{Seconds: span.from.Seconds(), Text: span.name})
	}
	return out
}
