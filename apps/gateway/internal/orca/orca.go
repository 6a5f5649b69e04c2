// Package orca reads what instances say of their load by ORCA (Open Request Cost Aggregation), the
// standard of Envoy and gRPC: a report, xds.data.orca.v3.OrcaLoadReport, in the header or the
// trailer of an answer.
//
//	endpoint-load-metrics:      TEXT application_utilization=0.6, rps_fractional=12.5, eps=0.1
//	endpoint-load-metrics:      JSON {"application_utilization": 0.6, "rps_fractional": 12.5}
//	endpoint-load-metrics:      BIN  base64 of the message
//	endpoint-load-metrics-bin:       base64 of the message, as gRPC has it
//
// It is pure. What it cannot read, it takes for no report, whole: an instance that gets one number
// wrong may mean something else by the others.
package orca

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Names of the fields, in lower case.
const (
	Field       = "endpoint-load-metrics"
	BinaryField = Field + "-bin"
)

// longest is what a report may have in bytes. Those of servers that name dozens of metrics of
// their own have one KiB.
const longest = 8 << 10

// Load is what of a report makes a weight. Numbers are finite, and not negative.
type Load struct {
	// Application is the utilization that the instance has worked out itself; where it has not,
	// CPU is that of its processors. 1 is all that it can take.
	Application, CPU float64
	// Requests and Errors per second.
	Requests, Errors float64
}

// Utilization and the share of requests that fail. ok is false where it says too little, as one
// that has metrics of its own alone.
func (l Load) Utilization() (utilization, failing float64, ok bool) {
	utilization = l.Application
	if utilization == 0 {
		utilization = l.CPU
	}
	if utilization == 0 || l.Requests == 0 {
		return 0, 0, false
	}
	return utilization, min(l.Errors/l.Requests, 1), true
}

// Parse reads the value of the field of that name, which is one of those above.
func Parse(name, value string) (Load, bool) {
	if len(value) > longest {
		return Load{}, false
	}
	if name == BinaryField {
		return parseBinary(value)
	}
	format, report, _ := strings.Cut(value, " ")
	switch format {
	case "TEXT":
		return parseText(report)
	case "JSON":
		return parseJSON(report)
	case "BIN":
		return parseBinary(strings.TrimSpace(report))
	}
	return Load{}, false
}

// parseText reads the text form. Metrics come once each, in any order, with others between them.
func parseText(report string) (Load, bool) {
	l := Load{Application: -1, CPU: -1, Requests: -1, Errors: -1} // not there
	for metric := range strings.SplitSeq(report, ",") {
		if strings.TrimSpace(metric) == "" {
			continue
		}
		at := strings.IndexAny(metric, "=:") // Envoy takes both
		if at < 0 {
			return Load{}, false
		}
		var to *float64
		switch strings.TrimSpace(metric[:at]) {
		case "application_utilization":
			to = &l.Application
		case "cpu_utilization":
			to = &l.CPU
		case "rps_fractional":
			to = &l.Requests
		case "eps":
			to = &l.Errors
		default:
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(metric[at+1:]), 64)
		if err != nil || !(n >= 0) || *to >= 0 {
			return Load{}, false
		}
		*to = n
	}
	return Load{max(l.Application, 0), max(l.CPU, 0), max(l.Requests, 0), max(l.Errors, 0)}.ifSound()
}

// parseJSON reads the message as protobuf writes it in JSON, by either of a field's names.
func parseJSON(report string) (Load, bool) {
	var m struct {
		Application  float64 `json:"application_utilization"`
		Application2 float64 `json:"applicationUtilization"`
		CPU          float64 `json:"cpu_utilization"`
		CPU2         float64 `json:"cpuUtilization"`
		Requests     float64 `json:"rps_fractional"`
		Requests2    float64 `json:"rpsFractional"`
		Errors       float64 `json:"eps"`
	}
	if err := json.Unmarshal([]byte(report), &m); err != nil {
		return Load{}, false
	}
	either := func(a, b float64) float64 {
		if a == 0 {
			return b
		}
		return a
	}
	return Load{either(m.Application, m.Application2), either(m.CPU, m.CPU2), either(m.Requests, m.Requests2), m.Errors}.ifSound()
}

// Numbers of the message's fields, which are all doubles.
const (
	cpuNumber         = 1
	requestsNumber    = 6
	errorsNumber      = 7
	applicationNumber = 9
)

// parseBinary reads the base64 form, with or without padding. It reads the message field by field, and so
// does not parse its maps, whose length the instance decides.
func parseBinary(value string) (Load, bool) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil {
		return Load{}, false
	}
	var l Load
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return Load{}, false
		}
		b = b[n:]
		var to *float64
		if kind == protowire.Fixed64Type {
			switch int(number) {
			case applicationNumber:
				to = &l.Application
			case cpuNumber:
				to = &l.CPU
			case requestsNumber:
				to = &l.Requests
			case errorsNumber:
				to = &l.Errors
			}
		}
		if to != nil {
			bits, read := protowire.ConsumeFixed64(b)
			*to, n = math.Float64frombits(bits), read
		} else {
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return Load{}, false
		}
		b = b[n:]
	}
	return l.ifSound()
}

func (l Load) ifSound() (Load, bool) {
	for _, n := range [...]float64{l.Application, l.CPU, l.Requests, l.Errors} {
		if !(n >= 0) || math.IsInf(n, 1) {
			return Load{}, false
		}
	}
	return l, true
}
