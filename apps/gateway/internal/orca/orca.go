// Package orca reads the load reports of instances. ORCA (Open Request Cost Aggregation) is a standard
// of Envoy and gRPC. A report is a xds.data.orca.v3.OrcaLoadReport in the header or the trailer of an
// answer.
//
//	endpoint-load-metrics:      TEXT application_utilization=0.6, rps_fractional=12.5, eps=0.1
//	endpoint-load-metrics:      JSON {"application_utilization": 0.6, "rps_fractional": 12.5}
//	endpoint-load-metrics:      BIN  base64 of the message
//	endpoint-load-metrics-bin:       base64 of the message, as gRPC sends it
//
// The package is pure. It ignores a whole report if one of its numbers cannot be read, because the
// other numbers may be wrong, too.
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

// longest is the size limit of a report in bytes. A report with dozens of the server's own metrics has
// about 1 KiB.
const longest = 8 << 10

// Load holds the parts of a report from which a weight is made. Numbers are finite, and not negative.
type Load struct {
	// Application is the utilization that the instance itself computed. CPU is the utilization of its
	// processors, which counts if Application is 0. 1 is full utilization.
	Application, CPU float64
	// Requests and Errors are per second.
	Requests, Errors float64
}

// Utilization returns the utilization and the share of requests that fail. ok is false if the report
// says too little, for example if it has only the server's own metrics.
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

// Parse reads the value of a field. name is Field or BinaryField. It returns false if there is no valid report.
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

// parseText reads the text form. Each metric comes at most once. The order is free, and other metrics may come
// in between.
func parseText(report string) (Load, bool) {
	l := Load{Application: -1, CPU: -1, Requests: -1, Errors: -1} // -1: the report does not have the metric
	for metric := range strings.SplitSeq(report, ",") {
		if strings.TrimSpace(metric) == "" {
			continue
		}
		at := strings.IndexAny(metric, "=:") // Envoy accepts both
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

// parseJSON reads the message in protobuf's JSON form. A field may have its proto name or its JSON name.
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

// These are the numbers of the message's fields. All of these fields are doubles.
const (
	cpuNumber         = 1
	requestsNumber    = 6
	errorsNumber      = 7
	applicationNumber = 9
)

// parseBinary reads the base64 form, with or without padding. It reads the message field by field and skips its
// maps, because an instance may send long ones.
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
