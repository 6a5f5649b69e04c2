package simulator

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const pageHead = "# Figures\n\n| subject | figures | benchmark | measured |\n|---|---|---|---|\n"

func results(texts ...string) (all []json.RawMessage) {
	for _, text := range texts {
		all = append(all, json.RawMessage(text))
	}
	return all
}

func TestPage_RowsAreFilled(t *testing.T) {
	page := pageHead + "| old | 9 s | `reconnect` | 2020-01-01 |\n| start | 160 s | `go tool task dev` | 2020-01-01 |\n\nMore.\n"
	filled, err := fillPage(page, results(
		`{"scenario":"reconnect","ok":true,"started":"2026-02-03T04:05:06Z","seconds":1.1151,"machine":{"stolen":0.02}}`,
		`{"scenario":"flood","ok":true,"started":"2026-02-04T04:05:06Z","p99_ms":1234.5,"p99_ms_without":0.04567,"machine":{"stolen":0.12}}`,
		`{"scenario":"slow","ok":false,"started":"2026-02-04T04:05:06Z"}`,
		`{"scenario":"chaos","ok":true,"started":"2026-02-04T04:05:06Z"}`,
	))
	require.NoError(t, err)
	require.Equal(t, pageHead+
		"| 1,000 agents reconnect | all back after 1.12 s | `reconnect` | 2026-02-03 |\n"+
		"| start | 160 s | `go tool task dev` | 2020-01-01 |\n"+
		"| a workspace that floods the API | another's deployment: p99 0.0457 ms without, 1,230 ms with the flood | `flood` | 2026-02-04, while the host took 12 % of the processor |\n"+
		"\nMore.\n", filled)
}

func TestHighest_IsOfAllRounds(t *testing.T) {
	rounds := []any{map[string]any{"rss_mib": 10.0}, map[string]any{"rss_mib": 1126.97}, map[string]any{"rss_mib": 387.0}}
	text, err := highestFigure(rounds, "rss_mib")
	require.NoError(t, err)
	require.Equal(t, "1,130", text)
	_, err = highestFigure(rounds, "cpu")
	require.ErrorContains(t, err, "no cpu")
}

func TestPage_FigureThatIsMissingIsAnError(t *testing.T) {
	_, err := fillPage(pageHead, results(`{"scenario":"reconnect","ok":true}`))
	require.ErrorContains(t, err, "row of reconnect")
	_, err = fillPage("# Another page\n", nil)
	require.ErrorContains(t, err, "no table")
}

func TestPage_HasEveryBenchmarkThatFillsARow(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	for _, row := range pageRows {
		require.True(t, slices.ContainsFunc(entries, func(e entry) bool { return e.name == row.entry }), row.entry)
		require.Equal(t, 1, strings.Count(string(page), " | `"+row.entry+"` | "), row.entry)
	}
	_, err = fillPage(string(page), nil)
	require.NoError(t, err)
}

func TestNumber_HasThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 1.966: "1.97", 0.1193: "0.119", 153.05: "153", 999.9: "1,000", 88674.9: "88,700", 2_000_000: "2,000,000", -1234: "-1,230", 0.00001: "1e-05"} {
		got, err := shortNumber(x)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
