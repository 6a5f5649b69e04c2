package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// FaultAnnotation is the annotation of a pod that stages failures: names
// separated by commas, some with a time, "slow-start=30s,oom=5m".
const FaultAnnotation = "kubelab.windlass.run/fault"

// Faults is what a pod's annotation stages. The zero value: nothing.
type Faults struct {
	// ImagePullError fails every pull for as long as the annotation says so.
	ImagePullError bool
	// NeverReady fails startup and readiness checks without asking the container.
	NeverReady bool
	// SlowStart passes between a container's start and its program's.
	SlowStart time.Duration
	// CrashLoop and OOM end each run. Without a time the program never gets to
	// run; with one it runs for that long.
	CrashLoop, OOM Crash
	// EvictAfter and PreemptAfter count from the pod's start on its node; 0: never.
	EvictAfter, PreemptAfter time.Duration
}

// Crash is one way to end a run.
type Crash struct {
	On    bool
	After time.Duration
}

// ParseFaults reads the annotation's value; an empty one stages nothing.
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
