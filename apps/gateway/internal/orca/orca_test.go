package orca

import (
	"encoding/base64"
	"math"
	"strings"
	"testing"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func TestReport_IsReadInEveryFormat(t *testing.T) {
	all := Load{Application: 0.6, CPU: 0.25, Requests: 12.5, Errors: 0.1}
	for value, want := range map[string]Load{
		"TEXT application_utilization=0.6, cpu_utilization=0.25,rps_fractional=12.5 , eps = 0.1, named_metrics.queue=7": all,
		"TEXT application_utilization:0.6,cpu_utilization:0.25,rps_fractional:12.5,eps:0.1,mem_utilization:0.9,":        all,
		"TEXT cpu_utilization=1e-1": {CPU: 0.1},
		// vLLM sends only metrics of its own, which say no utilization.
		"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=0.0":                                                          {},
		`JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 0.0}}`:                                                           {},
		`JSON {"application_utilization": 0.6, "cpu_utilization": 0.25, "rps_fractional": 12.5, "eps": 0.1, "utilization": {"gpu": 1}, "later": [1]}`: all,
		`JSON {"applicationUtilization":0.6,"cpuUtilization":0.25,"rpsFractional":12.5,"eps":0.1}`:                                                    all,
		"BIN CQAAAAAAANA/MQAAAAAAAClAOZqZmZmZmbk/STMzMzMzM+M/":                                                                                        all,
	} {
		got, ok := Parse(Field, value)
		require.True(t, ok, value)
		require.Equal(t, want, got, value)
	}
	for _, padded := range []string{"MQAAAAAAAClA", "CQAAAAAAANA/MQAAAAAAAClAOgA=", "CQAAAAAAANA/MQAAAAAAAClAOgA"} {
		got, ok := Parse(BinaryField, padded)
		require.True(t, ok, padded)
		require.Equal(t, 12.5, got.Requests)
	}
}

func TestReport_UnreadableIsNone(t *testing.T) {
	for _, value := range []string{
		"", "TEXT eps", "text eps=1", "eps=1", "XML <eps>1</eps>", "TEXT eps=", "TEXT eps=many", "TEXT eps=-1", "TEXT eps=NaN",
		"TEXT rps_fractional=Inf", "TEXT rps_fractional=1e999", "TEXT eps=1, eps=1", "TEXT cpu_utilization=0, cpu_utilization=1",
		"JSON", "JSON {", `JSON {"eps": -1}`, `JSON {"eps": "many"}`, `JSON {"rps_fractional": 1e999}`, "JSON []", `JSON {} {}`,
		"BIN *", "BIN CQ", "BIN CQAAAAAAAPB", "BIN MQAAAAAAAPB/",
		"TEXT eps=1" + strings.Repeat(" ", longest),
	} {
		_, ok := Parse(Field, value)
		require.False(t, ok, value)
	}
}

func TestUtilization_PrefersTheApplicationToTheProcessors(t *testing.T) {
	for _, c := range []struct {
		load                 Load
		utilization, failing float64
		ok                   bool
	}{
		{Load{Application: 0.5, CPU: 0.9, Requests: 10, Errors: 1}, 0.5, 0.1, true},
		{Load{CPU: 0.9, Requests: 10}, 0.9, 0, true},
		{Load{CPU: 0.9, Requests: 1, Errors: 10}, 0.9, 1, true},
		{Load{CPU: 0.9}, 0, 0, false},
		{Load{Requests: 10, Errors: 1}, 0, 0, false},
	} {
		utilization, failing, ok := c.load.Utilization()
		require.Equal(t, c.ok, ok)
		require.InDelta(t, c.utilization, utilization, 1e-12)
		require.InDelta(t, c.failing, failing, 1e-12)
	}
}

// Parse reads a message that protobuf has encoded as protobuf's own decoders do.
func TestReport_OfTheStandardsMessageIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Float64Range(0, 1e6)
		m := &orcav3.OrcaLoadReport{
			ApplicationUtilization: number.Draw(t, "application"), CpuUtilization: number.Draw(t, "cpu"), MemUtilization: number.Draw(t, "memory"),
			RpsFractional: number.Draw(t, "requests"), Eps: number.Draw(t, "errors"),
			NamedMetrics: rapid.MapOfN(rapid.StringMatching("[a-z]{1,8}"), rapid.Float64(), 0, 4).Draw(t, "named"),
		}
		want := Load{m.ApplicationUtilization, m.CpuUtilization, m.RpsFractional, m.Eps}
		wire, err := proto.Marshal(m)
		require.NoError(t, err)
		text := base64.StdEncoding.EncodeToString(wire)
		for name, value := range map[string]string{
			BinaryField: text, Field: "BIN " + text,
		} {
			got, ok := Parse(name, value)
			require.True(t, ok)
			require.Equal(t, want, got)
		}
		for _, names := range []bool{true, false} {
			object, err := protojson.MarshalOptions{UseProtoNames: names}.Marshal(m)
			require.NoError(t, err)
			got, ok := Parse(Field, "JSON "+string(object))
			require.True(t, ok)
			require.Equal(t, want, got)
		}
	})
}

// FuzzParse checks that Parse returns only finite numbers that are not negative. If protobuf reads the bytes as a
// report with such numbers, Parse must return the same numbers.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"TEXT application_utilization=0.6, rps_fractional=12.5, eps=0.1", `JSON {"rps_fractional": 1.5, "cpuUtilization": 1}`,
		"BIN CQAAAAAAANA/MQAAAAAAAClAOZqZmZmZmbk/STMzMzMzM+M/", "CQAAAAAAANA/QhAKBWRlcHRoEQAAAAAAAABA", "TEXT eps=1,eps=2", "JSON {\"eps\":1e308}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, name := range []string{Field, BinaryField} {
			got, ok := Parse(name, value)
			if !ok {
				require.Zero(t, got)
			}
			for _, n := range []float64{got.Application, got.CPU, got.Requests, got.Errors} {
				require.True(t, n >= 0 && !math.IsInf(n, 0))
			}
			utilization, failing, said := got.Utilization()
			require.Equal(t, said, utilization > 0)
			require.True(t, failing >= 0 && failing <= 1)
		}
		wire, err := base64.StdEncoding.DecodeString(value)
		var m orcav3.OrcaLoadReport
		if err != nil || len(value) > longest || proto.Unmarshal(wire, &m) != nil {
			return
		}
		want, sound := Load{m.ApplicationUtilization, m.CpuUtilization, m.RpsFractional, m.Eps}.ifSound()
		got, ok := Parse(BinaryField, value)
		require.Equal(t, sound, ok)
		require.Equal(t, want, got)
	})
}
