package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// pageRow is a row of the table of figures in docs/performance.md.
type pageRow struct {
	// entry is the benchmark whose result fills the row.
	entry string
	// subject and figures are the row's text. figures is a template that gets the result.
	subject, figures string
}

var pageRows = []pageRow{
	{"latency", "commit to the agent's runtime", "{{n .p50_ms}} ms median, {{n .p99_ms}} ms p99; committed and read again by the database alone {{n .floor_p50_ms}} and {{n .floor_p99_ms}} ms"},
	{"burst", "changes that arrive in a burst, with 64 calls in flight", "{{n .events_per_s}} a second, {{n .p99_ms}} ms p99"},
	{"deploys", "deployments, call to ready", "{{n .deploys_per_s}} a second with 64 at once; {{n (index .rounds 0).p50_ms}} ms for one alone"},
	{"ingest", "instance states stored, with agents on the same cores", "{{n .rows_per_s}} a second"},
	{"ingest-bare", "instance states stored, without agents", "{{n .rows_per_s}} a second"},
	{"snapshot", "snapshot of a lost inbox", "{{n .items_per_s}} items a second; 250 items in {{n (index .rounds 0).ms}} ms"},
	{"converge-1000", "1,000 instances to ready", "{{n .seconds}} s"},
	{"converge-5000", "5,000 instances to ready", "{{n .seconds}} s, the second time; {{n .second_ratio}} of the first"},
	{"converge-groups", "8,000 instances as groups of 8, in relation to as many of apps with one role", "{{n .groups_ratio}} of the time and {{n .groups_cpu_ratio}} of the processor time for each instance"},
	{"converge-2000000", "2,000,000 instances to ready", "{{n .seconds}} s"},
	{"idle", "1,000 idle agents", "{{n .cpu_percent}} % of a core, {{n .qps}} statements a second, {{n .rss_per_agent_kib}} KiB an agent"},
	{"reconnect", "1,000 agents reconnect", "all back after {{n .seconds}} s"},
	{"restart", "three replicas restart, one after the other", "changes {{n .p50_ms_during}} ms median and {{n .p99_ms_during}} ms p99, {{n .p50_ms_before}} and {{n .p99_ms_before}} ms before; a replica drains in {{n .drain_ms}} ms"},
	{"overload", "ten times the states that can be stored", "counts are right after {{n .edge_p50_ms}} ms median, {{n .edge_p99_ms}} ms p99; {{n .lost}} lost; the control plane has {{n .plane_peak_mib}} MiB at most"},
	{"rollouts", "rollouts in waves", "{{n .rollouts_per_s}} a second end; {{n .cpu_ms_per_rollout}} ms of processor time and {{n .statements_per_rollout}} statements each"},
	{"regions", "a change in a fleet of 1,000 regions", "{{n .cpu_ms_per_change}} ms of processor time; {{n .ratio}} of that in a fleet of 10"},
	{"retention", "days of 120 versions, 40 scales and 120 crashes", "{{n .rows}} rows and {{n .mib}} MiB in the end, {{n .rows_settled}} and {{n .mib_settled}} MiB when the bounds were reached"},
	{"slow", "one agent that reads nothing", "p99 of the other agents {{n .p99_ms}} ms with the slow agent, {{n .p99_ms_without}} ms without"},
	{"flood", "a workspace that floods the API", "another's deployment: p99 {{n .p99_ms_without}} ms without, {{n .p99_ms}} ms with the flood"},
	{"scaling", "1,000 scaled apps in 10 regions", "{{n .jumps_cpu_percent}} % of a core and {{n .jumps_queries_per_s}} statements a second while loads jump, {{n .quiet_cpu_percent}} % and {{n .quiet_queries_per_s}} while they stay; a new assignment {{n .p50_ms}} ms median and {{n .p99_ms}} ms p99 after a load jumped"},
	{"follow", "the load of one app goes from 1 to 64 clients and back", "{{n .failed}} of {{n .requests}} requests failed; p95 of the first token was back below 1 s within {{n .recovered_s}} s of a step; {{n .turns}} change of direction in a step at most; up to {{n .most_replicas}} replicas"},
	{"follow-2", "the same load, divided between two regions", "{{n .failed}} of {{n .requests}} requests failed; p95 was back within {{n .recovered_s}} s; {{n .turns}} change of direction in a step at most; up to {{n .most_replicas}} replicas in a region"},
	{"follow-rollouts", "the load goes from 8 to 64 clients and back during a rolling update, a canary, a blue-green deployment and a rollback", "{{n .failed}} of {{n .requests}} requests failed; ready replicas never below what was wanted and had been ready; replicas were added {{n .raised}} times during the rollouts, and removed {{n .lowered_after}} times after them"},
	{"zero", "an app goes to zero and back, in every other round with the control plane killed", "{{n .zero_wakes}} rounds; {{n .zero_failed}} of {{n .zero_requests}} requests failed; {{n .zero_waited}} waited for an instance, and reached it {{n .zero_overhead_p50_ms}} ms median and {{n .zero_overhead_p99_ms}} ms p99 after it was ready"},
	{"siege", "a gateway that is attacked; another tenant's p99 before and during, with `--realtime`", "20,000 idle connections {{n .idle_p99_before_ms}} and {{n .idle_p99_ms}} ms; 64 slow uploads {{n .uploads_p99_before_ms}} and {{n .uploads_p99_ms}} ms; " +
		"24 poisonous answers {{n .poison_p99_before_ms}} and {{n .poison_p99_ms}} ms; 10,000 streams {{n .watches_p99_before_ms}} and {{n .watches_p99_ms}} ms; " +
		"18,000 half HTTP/3 requests {{n .half_p99_before_ms}} and {{n .half_p99_ms}} ms; 8,000 held requests {{n .held_p99_before_ms}} and {{n .held_p99_ms}} ms. " +
		"The gateway had {{most .rounds `rss_mib`}} MiB at most"},
	{"watchers", "a workspace that opens 10,000 WatchApp streams", "{{n .streams}} are open, {{n .refused_per_s}} tries a second are refused. Another workspace's p99 before and during: reads {{n .reads_p99_before_ms}} and {{n .reads_p99_ms}} ms; " +
		"calls that deploy {{n .deploys_p99_before_ms}} and {{n .deploys_p99_ms}} ms; call to ready {{n .ready_p99_before_ms}} and {{n .ready_p99_ms}} ms. The control plane had {{n .plane_mib}} MiB at most"},
}

// stolenNoted is the share of the processor that the host may take before the page says so.
const stolenNoted = 0.05

// fillPage returns the page with the rows of the results in its table. Rows of other benchmarks keep their text, and
// rows that are missing are added at the end. It leaves out results that failed.
func fillPage(page string, results []json.RawMessage) (string, error) {
	lines := strings.Split(page, "\n")
	head := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| subject | figures | benchmark |") })
	if head < 0 {
		return "", errors.New(`the page has no table with the columns "subject", "figures", "benchmark" and "measured"`)
	}
	end := head
	for end < len(lines) && strings.HasPrefix(lines[end], "|") {
		end++
	}
	for _, text := range results {
		line, name, err := pageLine(text)
		if err != nil {
			return "", err
		}
		if line == "" {
			continue
		}
		at := slices.IndexFunc(lines[head:end], func(old string) bool { return strings.Contains(old, " | `"+name+"` | ") })
		if at >= 0 {
			lines[head+at] = line
			continue
		}
		lines = slices.Insert(lines, end, line)
		end++
	}
	return strings.Join(lines, "\n"), nil
}

// pageLine returns the row of a result, and the benchmark's name. The row is empty if the page has none of the benchmark,
// or if it failed.
func pageLine(text json.RawMessage) (line, name string, err error) {
	var head struct {
		Scenario string
		OK       bool
		Started  time.Time
		Machine  struct{ Stolen float64 }
	}
	figures := map[string]any{}
	if err := errors.Join(json.Unmarshal(text, &head), json.Unmarshal(text, &figures)); err != nil {
		return "", "", fmt.Errorf("read a result: %w", err)
	}
	n := slices.IndexFunc(pageRows, func(r pageRow) bool { return r.entry == head.Scenario })
	if n < 0 || !head.OK {
		return "", head.Scenario, nil
	}
	row := pageRows[n]
	t, err := template.New(row.entry).Funcs(template.FuncMap{"n": shortNumber, "most": highestFigure}).Option("missingkey=error").Parse(row.figures)
	if err != nil {
		return "", row.entry, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, figures); err != nil {
		return "", row.entry, fmt.Errorf("row of %s: %w", row.entry, err)
	}
	measured := head.Started.Format(time.DateOnly)
	if head.Machine.Stolen > stolenNoted {
		measured += fmt.Sprintf(", while the host took %.0f %% of the processor", 100*head.Machine.Stolen)
	}
	return fmt.Sprintf("| %s | %s | `%s` | %s |", row.subject, out.String(), row.entry, measured), row.entry, nil
}

// highestFigure returns the highest figure of that name of all rounds.
func highestFigure(rounds []any, name string) (string, error) {
	most := math.Inf(-1)
	for _, r := range rounds {
		round, _ := r.(map[string]any)
		x, ok := round[name].(float64)
		if !ok {
			return "", fmt.Errorf("a round has no %s", name)
		}
		most = max(most, x)
	}
	return shortNumber(most)
}

// shortNumber writes a number for people: three significant digits, and commas in thousands.
func shortNumber(v any) (string, error) {
	x, ok := v.(float64)
	if !ok {
		return "", fmt.Errorf("%v is no number", v)
	}
	if x != 0 {
		unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2)
		x = math.Round(x/unit) * unit
	}
	if math.Abs(x) < 1000 {
		return strconv.FormatFloat(x, 'g', 3, 64), nil
	}
	digits := strconv.FormatInt(int64(math.Abs(x)), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if x < 0 {
		digits = "-" + digits
	}
	return digits, nil
}

// updatePage writes the figures of the results into the file of the page.
func updatePage(path string, results []json.RawMessage) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("update the page: %w", err)
	}
	filled, err := fillPage(string(page), results)
	if err != nil {
		return fmt.Errorf("update %s: %w", path, err)
	}
	if filled == string(page) {
		return nil
	}
	if err := os.WriteFile(path, []byte(filled), 0o644); err != nil {
		return fmt.Errorf("update the page: %w", err)
	}
	return nil
}
