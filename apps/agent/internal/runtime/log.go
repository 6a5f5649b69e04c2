package runtime

import (
	"strings"
	"time"
	"unicode/utf8"
)

// LogPosition is a place in an instance's output. Only the runtime knows what Offset counts; a
// larger one is later. Line is the number of lines before it, 0 when the runtime does not count them.
type LogPosition struct{ Offset, Line int64 }

// LogQuery is the part to read of an instance's output.
type LogQuery struct {
	// After is where to begin. Nil: Tail lines before the end, or at the first line if Tail is negative.
	After *LogPosition
	Tail  int
	// Since leaves out older lines. Zero: it leaves out none.
	Since time.Time
	// Limit is how many bytes are returned at most. If there are more, the newest are returned.
	Limit int
}

// LogPage is a piece of an instance's output.
type LogPage struct {
	Lines []LogLine
	// Next is where the page ends.
	Next LogPosition
	// Lost is the number of lines between After and the first line. LostMore means that more lines, whose
	// number is not known, are missing.
	Lost     int64
	LostMore bool
}

// LogLine is one line, without its line break. End is LogPosition.Offset of its end.
type LogLine struct {
	At   time.Time
	Text string
	End  int64
}

// LogText returns a line as valid UTF-8, without a carriage return at its end.
func LogText(s string) string {
	s = strings.TrimSuffix(s, "\r")
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
