package runtime

import (
	"strings"
	"time"
	"unicode/utf8"
)

// LogPosition is a position in an instance's output. Only the runtime knows what Offset counts. A
// larger Offset is later. Line is the number of lines before the position, or 0 if the runtime does
// not count lines.
type LogPosition struct{ Offset, Line int64 }

// LogQuery says which part of an instance's output to read.
type LogQuery struct {
	// After is the position to begin at. Nil: Tail lines before the end, or the first line if Tail
	// is negative.
	After *LogPosition
	Tail  int
	// Since leaves out lines before this time. Zero: no line is left out.
	Since time.Time
	// Limit is the maximum size of the page, in bytes. If there is more output, the newest lines
	// are returned.
	Limit int
}

// LogPage is a part of an instance's output.
type LogPage struct {
	Lines []LogLine
	// Next is the position of the page's end.
	Next LogPosition
	// Lost is the number of lines between After and the first line. LostMore means that more lines
	// are missing, and that their number is not known.
	Lost     int64
	LostMore bool
}

// LogLine is one line, without its line break. End is the LogPosition.Offset of the line's end.
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
