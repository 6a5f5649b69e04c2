package runtime

import (
	"fmt"
	"time"
)

const (
	// LoopAfter is how many ends in a row make a crash loop. An end counts unless somebody
	// asked for it.
	LoopAfter = 3
	// StableAfter is how long a run must have been ready for the ends before it to be
	// forgiven. A shorter one forgives nothing: what serves for seconds and ends again is in
	// a loop, too.
	StableAfter = 60 * time.Second
)

// JudgeEnd returns what to report of an instance that has ended the given number of times in a
// row, the last time for this reason. A loop dooms the instance, and is called CrashLoop unless
// the cause has a name of its own. It is the only definition of a crash loop, so that the reason that people read
// and the count that a rollout goes by cannot differ.
func JudgeEnd(ends int, reason, message string) (r, m string, doomed bool) {
	if ends < LoopAfter {
		return reason, message, false
	}
	if reason == ReasonExited {
		return ReasonCrashLoop, fmt.Sprintf("ended %d times in a row: %s", ends, message), true
	}
	return reason, message, true
}
