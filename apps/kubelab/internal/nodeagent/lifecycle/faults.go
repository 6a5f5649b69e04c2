package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// FaultAnnotation is the annotation of a pod that stages failures. Its value is a list of names, some with a
// time, like "slow-start=30s,oom=5m".
const FaultAnnotation = "kubelab.windlass.run/fault"

// Faults are the failures that a pod's annotation stages. The zero value stages nothing.
type Faults struct {
	// ImagePullError makes every pull fail while the annotation has it.
	ImagePullError bool
	// NeverReady makes startup and readiness checks fail without running them.
	NeverReady bool
	// SlowStart is the time between the start of a container and the start of its program.
	SlowStart time.Duration
	// CrashLoop and OOM end each run. The program runs for the given time. Without a time it does not run.
	CrashLoop, OOM Crash
	// EvictAfter and PreemptAfter count from the pod's start on its node. 0 means never.
	EvictAfter, PreemptAfter time.Duration
}

// Crash is one way to end a run.
type Crash struct {
	On    bool
	After time.Duration
}

// ParseFaults parses the annotation's value. An empty value stages nothing.
func ParseFaults(value string) (Faults, error) {
	var f Faults
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		name, text, timed := strings.Cut(word, "=")
		var after time.Duration
		if timed {
			var err error
			if after, err = time.ParseDuration(text); err != nil || after <= 0 {
				return Faults{}, fmt.Errorf("annotation %s: %s needs a time above 0 like %s=10s, not %q", FaultAnnotation, name, name, text)
			}
		}
		var needs, refuses bool
		switch name {
		case "image-pull-error":
			f.ImagePullError, refuses = true, true
		case "never-ready":
			f.NeverReady, refuses = true, true
		case "crash-loop":
			f.CrashLoop = Crash{On: true, After: after}
		case "oom":
			f.OOM = Crash{On: true, After: after}
		case "slow-start":
			f.SlowStart, needs = after, true
		case "evict-after":
			f.EvictAfter, needs = after, true
		case "preempt-after":
			f.PreemptAfter, needs = after, true
		default:
			return Faults{}, fmt.Errorf("annotation %s: unknown fault %q (image-pull-error, crash-loop, oom, slow-start=30s, never-ready, evict-after=10s, preempt-after=10s)", FaultAnnotation, name)
		}
		if needs && !timed {
			return Faults{}, fmt.Errorf("annotation %s: %s needs a time, like %s=10s", FaultAnnotation, name, name)
		}
		if refuses && timed {
			return Faults{}, fmt.Errorf("annotation %s: %s takes no time", FaultAnnotation, name)
		}
	}
	return f, nil
}
