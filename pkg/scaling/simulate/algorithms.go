package simulate

import (
	"math"
	"time"

	"github.com/windlass-run/windlass/pkg/scaling"
)

// hpa is the HorizontalPodAutoscaler of Kubernetes, autoscaling/v2, with the defaults of its behavior. It
// decides every 15 s, has a tolerance of 0.1, and takes the highest number of pods that a metric wants.
// Scaling down has a stabilization window of 300 s, and scaling up has none. In 15 s it may add 100 % of the
// pods or 4 pods, whichever is more. It may remove all pods at once. A metric that is a total (Metric.IsTotal)
// becomes a metric of type AverageValue. Each other metric is the mean of the ready pods. When a mean wants more
// pods, pods that are not ready yet count as 0.
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
type hpa struct {
	policy  *scaling.Policy
	metrics []scaling.Metric
	last    time.Duration
	begun   bool
	// recommended has the recommendations of the last 300 s. replicas has the numbers of replicas in the last
	// 15 s.
	recommended, replicas []Number
}

const (
	hpaEvery     = 15 * time.Second
	hpaStable    = 300
	hpaTolerance = 0.1
)

// newHPA returns nil if the HPA supports no metric of the policy.
func newHPA(p *scaling.Policy) *hpa {
	h := &hpa{policy: p}
	for _, m := range p.Metrics {
		switch m.Type {
		case scaling.InFlight, scaling.RequestsPerSecond, scaling.Queue, scaling.KVCache, scaling.CPU:
			h.metrics = append(h.metrics, m)
		case scaling.Memory, scaling.Models, scaling.FirstToken, scaling.Latency, scaling.Prometheus:
		}
	}
	if len(h.metrics) == 0 {
		return nil
	}
	return h
}

func (h *hpa) wanted(now time.Duration, s scaling.Sample, desired int) int {
	if h.begun && now-h.last < hpaEvery {
		return desired
	}
	h.last, h.begun = now, true
	want := 0
	for _, m := range h.metrics {
		want = max(want, h.wantOf(m, s, desired))
	}
	at := int(now.Seconds())
	h.recommended = dropBefore(append(h.recommended, Number{at, want}), at-hpaStable)
	h.replicas = dropBefore(append(h.replicas, Number{at, desired}), at-int(hpaEvery.Seconds()))
	most, least := want, desired
	for _, r := range h.recommended {
		most = max(most, r.Replicas)
	}
	for _, r := range h.replicas {
		least = min(least, r.Replicas)
	}
	if want < desired {
		want = min(desired, most)
	}
	want = min(want, max(2*least, least+4))
	return max(h.policy.Min, min(want, h.policy.Max))
}

// wantOf returns the number of pods for one metric.
func (h *hpa) wantOf(m scaling.Metric, s scaling.Sample, desired int) int {
	if m.IsTotal() {
		total := totalOf(m, s)
		if desired > 0 && math.Abs(total/(m.Target*float64(desired))-1) <= hpaTolerance {
			return desired
		}
		return int(math.Ceil(total/m.Target - 1e-9))
	}
	v, ok := s.Levels[string(m.Type)]
	if !ok {
		return desired
	}
	ratio, pods := v/m.Target, float64(s.Ready)
	if math.Abs(ratio-1) <= hpaTolerance {
		return desired
	}
	if ratio > 1 && s.Starting > 0 {
		pods = float64(s.Ready + s.Starting)
		if ratio *= float64(s.Ready) / pods; ratio <= 1+hpaTolerance {
			return desired
		}
	}
	return int(math.Ceil(ratio*pods - 1e-9))
}

func totalOf(m scaling.Metric, s scaling.Sample) float64 {
	switch m.Type {
	case scaling.RequestsPerSecond:
		return *s.Rate
	case scaling.Queue:
		return *s.Queued
	default:
		return *s.InFlight + *s.Queued
	}
}

// dropBefore returns the numbers that begin to hold at the second from, or later.
func dropBefore(all []Number, from int) []Number {
	for len(all) > 0 && all[0].Seconds < from {
		all = all[1:]
	}
	return all
}

// kpa is Knative's autoscaler with its defaults. It decides every 2 s. Its stable window is 60 s, its panic
// window a tenth of that, and its panic threshold 200 %. One decision may grow the ready pods to 1,000 times
// their number, or shrink them to half of it. It aims at the whole target, as policies of Windlass do.
// Knative's default aims at 70 % of it.
// https://knative.dev/docs/serving/autoscaling/kpa-specific/
type kpa struct {
	policy *scaling.Policy
	metric scaling.Metric
	last   time.Duration
	// values are the totals of the last 60 s, one for each second.
	values []float64
	// panicUntil is when the panic ends, or -1 without a panic. panicPods is the highest number of pods in the
	// current panic.
	panicUntil time.Duration
	panicPods  int
}

const (
	kpaEvery  = 2 * time.Second
	kpaStable = 60
	kpaPanic  = 6
	kpaUp     = 1000
	kpaDown   = 2
)

// newKPA returns nil for a policy without concurrency or rate, because the KPA has no other metrics.
func newKPA(p *scaling.Policy) *kpa {
	for _, m := range p.Metrics {
		if m.Type == scaling.InFlight || m.Type == scaling.RequestsPerSecond {
			return &kpa{policy: p, metric: m, panicUntil: -1, last: -kpaEvery}
		}
	}
	return nil
}

func (k *kpa) wanted(now time.Duration, s scaling.Sample, desired int) int {
	if k.values = append(k.values, totalOf(k.metric, s)); len(k.values) > kpaStable {
		k.values = k.values[1:]
	}
	if now-k.last < kpaEvery {
		return desired
	}
	k.last = now
	ready := max(float64(s.Ready), 1)
	most, least := math.Ceil(kpaUp*ready), math.Floor(ready/kpaDown)
	stable := min(max(math.Ceil(meanOfLast(k.values, kpaStable)/k.metric.Target-1e-9), least), most)
	burst := min(max(math.Ceil(meanOfLast(k.values, kpaPanic)/k.metric.Target-1e-9), least), most)
	want := int(stable)
	if burst/ready >= 2 {
		if k.panicUntil < 0 {
			k.panicPods = 0
		}
		k.panicUntil = now + kpaStable*time.Second
	} else if k.panicUntil >= 0 && now >= k.panicUntil {
		k.panicUntil = -1
	}
	if k.panicUntil >= 0 {
		k.panicPods = max(k.panicPods, int(burst), desired)
		want = k.panicPods
	}
	return max(k.policy.Min, min(want, k.policy.Max))
}

// meanOfLast returns the mean of the last n values.
func meanOfLast(values []float64, n int) float64 {
	if len(values) > n {
		values = values[len(values)-n:]
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
