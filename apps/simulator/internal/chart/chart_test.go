package chart_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/simulator/internal/chart"
)

// points returns the points of times and values in turn.
func points(pairs ...float64) (out []chart.Point) {
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, chart.Point{Seconds: pairs[i], Value: pairs[i+1]})
	}
	return out
}

func TestSVG_IsXMLWithAxesUnitsAndALegend(t *testing.T) {
	c := chart.Chart{
		Title: "Load & replicas",
		Panels: []chart.Panel{
			{Label: "replicas", Lines: []chart.Line{{Name: "wanted", Steps: true, Points: points(0, 1, 10, 8, 20, 2)}}},
			{Label: "p95 (ms)", Log: true, Lines: []chart.Line{{Name: "p95 <eu>", Color: 1, Dashed: true, Points: points(0, 200, 5, math.NaN(), 10, 5000)}}},
		},
		Marks: []chart.Mark{{Seconds: 10, Text: "64 clients"}},
	}
	text := string(c.SVG())
	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, word := range []string{"Load &amp; replicas", ">replicas<", ">p95 (ms)<", ">wanted<", "p95 &lt;eu&gt;", ">64 clients<", ">time (s)<", ">500<", ">20<"} {
		require.Contains(t, text, word)
	}
	require.NotContains(t, text, "NaN")
	require.Regexp(t, `d="M[0-9. ]+M[0-9. ]+"`, text, "a value that is not a number interrupts the line")
}

func TestSVG_IsDrawnWithoutValues(t *testing.T) {
	text := string(chart.Chart{Panels: []chart.Panel{{Label: "none"}, {Label: "log", Log: true}}}.SVG())
	require.NotContains(t, text, "NaN")
	require.NotContains(t, text, "Inf")
}
