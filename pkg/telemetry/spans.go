package telemetry

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Span has the useful part of one line of a span file.
type Span struct {
	TraceID, SpanID string
	// ParentID is empty for the root of a trace.
	ParentID string
	Name     string
	// Service is the service.name of the program that wrote the span.
	Service    string
	Start, End time.Time
	// Failed reports whether the span ended with an error. Message is the error.
	Failed     bool
	Message    string
	Attributes map[string]any
}

// ReadSpans returns the spans of a span file, in order of their ends. It leaves out an incomplete last line,
// which a program is writing or was writing when it was killed.
func ReadSpans(r io.Reader) ([]Span, error) {
	var spans []Span
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return spans, nil
		} else if err != nil {
			return nil, fmt.Errorf("read spans: %w", err)
		}
		var raw rawSpan
		if err := json.Unmarshal(line, &raw); err != nil {
			return nil, fmt.Errorf("read spans: line %d: %w", n, err)
		}
		spans = append(spans, raw.toSpan())
	}
}

// rawSpan is the stdouttrace exporter's format.
type rawSpan struct {
	Name        string
	SpanContext rawContext
	Parent      rawContext
	StartTime   time.Time
	EndTime     time.Time
	Attributes  []rawAttribute
	Status      struct{ Code, Description string }
	Resource    []rawAttribute
}

type rawContext struct{ TraceID, SpanID string }

type rawAttribute struct {
	Key   string
	Value struct{ Value any }
}

func (r rawSpan) toSpan() Span {
	s := Span{
		TraceID: r.SpanContext.TraceID, SpanID: r.SpanContext.SpanID, ParentID: r.Parent.SpanID,
		Name: r.Name, Start: r.StartTime, End: r.EndTime,
		Failed: r.Status.Code == "Error", Message: r.Status.Description,
		Attributes: make(map[string]any, len(r.Attributes)),
	}
	if s.ParentID == "0000000000000000" {
		s.ParentID = ""
	}
	for _, a := range r.Attributes {
		s.Attributes[a.Key] = a.Value.Value
	}
	for _, a := range r.Resource {
		if a.Key == "service.name" {
			s.Service, _ = a.Value.Value.(string)
		}
	}
	return s
}
