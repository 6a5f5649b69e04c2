package simulate

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// maxPoints is the maximum number of points of a trace: one for each second of a week.
const maxPoints = 7 * 24 * 3600

// maxLength is the maximum time of the last point.
const maxLength = 32 * 24 * time.Hour

// ParseTrace reads a trace in CSV or JSON. CSV has the columns seconds and requests_per_second. It may have a
// header, and comments that begin with #. JSON is a list of {"seconds": 0, "requestsPerSecond": 2.5}.
func ParseTrace(data []byte) ([]Point, error) {
	read := parseCSV
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '[' {
		read = parseJSON
	}
	out, err := read(data)
	if err != nil {
		return nil, err
	}
	if len(out) > maxPoints {
		return nil, fmt.Errorf("the trace has %d points: use at most %d", len(out), maxPoints)
	}
	for i, p := range out {
		if p.At < 0 || p.At > maxLength {
			return nil, fmt.Errorf("point %d: the time is not between 0 and 32 days", i+1)
		}
	}
	return out, nil
}

func parseJSON(data []byte) (out []Point, err error) {
	var points []struct {
		Seconds           *float64 `json:"seconds"`
		RequestsPerSecond *float64 `json:"requestsPerSecond"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&points); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	for i, p := range points {
		if p.Seconds == nil || p.RequestsPerSecond == nil {
			return nil, fmt.Errorf("point %d: seconds and requestsPerSecond are required", i+1)
		}
		out = append(out, Point{toDuration(*p.Seconds), *p.RequestsPerSecond})
	}
	return out, nil
}

func parseCSV(data []byte) (out []Point, err error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = '#', 2, true
	for first := true; ; first = false {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read CSV: %w", err)
		}
		line, _ := r.FieldPos(0)
		at, atErr := strconv.ParseFloat(strings.TrimSpace(row[0]), 64)
		rate, rateErr := strconv.ParseFloat(strings.TrimSpace(row[1]), 64)
		if err := errors.Join(atErr, rateErr); err != nil {
			if first && atErr != nil && rateErr != nil {
				continue // the header
			}
			return nil, fmt.Errorf("line %d: want seconds and requests a second, got %q and %q", line, row[0], row[1])
		}
		out = append(out, Point{toDuration(at), rate})
	}
}

// toDuration converts seconds to a duration. It returns -1 for a number that no trace may have.
func toDuration(v float64) time.Duration {
	if !(v >= 0 && v <= maxLength.Seconds()) {
		return -1
	}
	return time.Duration(v * float64(time.Second))
}
