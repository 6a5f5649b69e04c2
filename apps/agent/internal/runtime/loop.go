package runtime

import (
	"fmt"
	"time"
)

const (
	// LoopAfter is how many ends in a row make a crash loop. A requested end does not count.
	LoopAfter = 3
	// StableAfter is how long an instance must have been ready so that its earlier ends no longer
	// count. A shorter time changes nothing, because an instance that serves for seconds and ends
	// again is in a loop.
	StableAfter = 60 * time.Second
)

// JudgeEnd returns the reason and the message to report for an instance that has ended the given
// number of times in a row. reason and message are those of its last end. In a crash loop, doomed
// is true, and ReasonExited becomes ReasonCrashLoop. Other reasons stay, because they name the
// cause. This is the only definition of a crash loop, so the reason that people read always agrees
// with the count that a rollout uses.
func JudgeEnd(ends int, reason, message string) (r, m string, doomed bool) {
	if ends < LoopAfter {
		return reason, message, false
	}
	if reason == ReasonExited {
		return ReasonCrashLoop, fmt.Sprintf("ended %d times in a row: %s", ends, message), true
	}
	return reason, message, true
}
