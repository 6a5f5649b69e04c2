package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// Retention simulates days of changes, and checks what each day leaves in the database. The changes are real:
// calls to the API, workflows, agents and reports, equally many each day. Only the time between the days is
// simulated. When a day's changes are done, all timestamps that retention uses are set back by 24 hours in
// the database. About once a second, the control plane deletes the rows that are due. Most limits have their
// default values. A feed keeps fewer changes than the default of 20,000, and the audit two days instead of
// 90, so that a week reaches their bounds.
//
// From the day on which every bound is reached no table may have more rows than before, and the files of the
// database no more bytes. A tolerance of a tenth allows for variations of the counts.
//
// What limits it: the day's changes, which are real. A comment in the control plane's package fleet
// (maintain.go) describes what eight days of the full size leave.
type Retention struct {
	Days     int `help:"Days that go by." default:"8"`
	Settle   int `help:"The day at whose end every bound is reached." default:"5"`
	Apps     int `help:"Apps that exist for the whole run. One more app exists for a part of each day." default:"3"`
	Regions  int `help:"Regions; each app runs in all of them." default:"3"`
	Deploys  int `help:"Versions of each app that are deployed a day." default:"30"`
	Scales   int `help:"Changes of each app's replicas a day." default:"10"`
	Crashes  int `help:"Instances of each app that crash a day, in each region." default:"10"`
	Changes  int `name:"keep-changes" help:"Changes of a region that are kept." default:"1000"`
	Versions int `name:"keep-versions" help:"Versions of an app that are kept." default:"100"`
	History  int `name:"keep-history" help:"Entries of an app's history that are kept." default:"1000"`
}

// Deadline implements Scenario.
func (s *Retention) Deadline() time.Duration {
	return 5*time.Minute + time.Duration(s.Days*(s.Apps+1)*(s.Deploys+s.Scales))*2*time.Second
}

const (
	aDay = 24 * time.Hour
	// keepAudit is how long this scenario keeps the audit.
	keepAudit = 48 * time.Hour
	// forgetEvery is how often the control plane of this scenario looks for what is due.
	forgetEvery = time.Second
	// slackRows and slackBytes are allowed in addition to a tenth, because small tables vary more, and files grow in
	// steps.
	slackRows  = 20
	slackBytes = 8 << 20
)

// Run implements Scenario.
func (s *Retention) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--days", s.Days, "--settle", s.Settle, "--apps", s.Apps, "--regions", s.Regions, "--deploys", s.Deploys,
		"--scales", s.Scales, "--crashes", s.Crashes, "--keep-changes", s.Changes, "--keep-versions", s.Versions, "--keep-history", s.History); err != nil {
		return err
	}
	if s.Settle >= s.Days || s.Regions > 32 {
		return errors.New("--settle: has to be a day before --days ends; --regions: at most 32")
	}
	env.recordSizes("days", s.Days, "settle", s.Settle, "apps", s.Apps, "regions", s.Regions, "deploys", s.Deploys, "scales", s.Scales,
		"crashes", s.Crashes, "keep_changes", s.Changes, "keep_versions", s.Versions, "keep_history", s.History, "keep_audit", keepAudit.String())
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, ServeFlags: []string{
		fmt.Sprint("--keep-changes=", s.Changes), fmt.Sprint("--keep-versions=", s.Versions), fmt.Sprint("--keep-history=", s.History),
		"--audit-retention=" + keepAudit.String(), "--forget-every=" + forgetEvery.String(),
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	days := s.newDays(w)

	var all []leftover
	_, parts, err := measureWindow(ctx, w, func() error {
		for day := 1; day <= s.Days; day++ {
			w.Progressf("day %d: %d deployments, %d scales, %d crashes", day,
				(s.Apps+1)*s.Deploys, (s.Apps+1)*s.Scales, (s.Apps+1)*s.Crashes*s.Regions)
			left, err := days.simulateDay(ctx, day)
			if err != nil {
				return fmt.Errorf("day %d: %w", day, err)
			}
			w.Progressf("day %d: %s", day, left)
			env.Result.Rounds = append(env.Result.Rounds, left.roundFigures(day))
			all = append(all, left)
		}
		return nil
	})
	if err != nil {
		return err
	}
	metrics, err := w.Metrics(ctx)
	if err != nil {
		return err
	}
	env.Result.Parts = parts
	last, settled := all[len(all)-1], peakOf(all[:s.Settle])
	env.Result.Details = map[string]any{"rows": last.rows}
	env.Result.Figure("rows", float64(last.totalRows()), "rows in all tables after the last day")
	env.Result.Figure("rows_settled", float64(settled.totalRows()), "rows, at the most up to the day on which bounds are reached")
	env.Result.Figure("mib", inMiB(last.bytes), "MiB of the database's tables after the last day")
	env.Result.Figure("mib_settled", inMiB(settled.bytes), "MiB, at the most up to that day")
	env.Result.Figure("restate_mib", inMiB(last.restate), "MiB of Restate after the last day")
	env.Result.Figure("forgotten", metrics.Sum("windlass_forgotten_rows_total", ""), "rows that retention deleted, as the control plane counts them")
	env.Result.Figure("changes_per_day", float64(days.calls)/float64(s.Days), "calls and crashes")
	return checkGrowth(settled, all[s.Settle:])
}

// leftover is the size of the data after a day.
type leftover struct {
	rows           map[string]int64
	bytes, restate int64
	seconds        float64
}

func (l leftover) totalRows() (n int64) {
	for _, rows := range l.rows {
		n += rows
	}
	return n
}

func (l leftover) String() string {
	return fmt.Sprintf("%d rows, %.1f MiB, %.1f s", l.totalRows(), inMiB(l.bytes), l.seconds)
}

// roundFigures returns the day's figures for the results: the total and the largest tables.
func (l leftover) roundFigures(day int) map[string]any {
	out := map[string]any{"day": day, "rows": l.totalRows(), "mib": inMiB(l.bytes), "restate_mib": inMiB(l.restate), "seconds": l.seconds}
	for _, table := range []string{"region_changes", "deployment_topology", "instances", "deployments", "rollouts", "history", "idempotency", "audit", "apps"} {
		out[table] = l.rows[table]
	}
	return out
}

func inMiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// peakOf returns the highest number of rows of each table, and of bytes.
func peakOf(days []leftover) leftover {
	out := leftover{rows: map[string]int64{}}
	for _, d := range days {
		for table, n := range d.rows {
			out.rows[table] = max(out.rows[table], n)
		}
		out.bytes, out.restate = max(out.bytes, d.bytes), max(out.restate, d.restate)
	}
	return out
}

// checkGrowth returns an error that names each table, and the database, if it is larger than before.
func checkGrowth(before leftover, later []leftover) error {
	now := peakOf(later)
	var errs []error
	for _, table := range slices.Sorted(maps.Keys(now.rows)) {
		if was, is := before.rows[table], now.rows[table]; is > was+was/10+slackRows {
			errs = append(errs, fmt.Errorf("table %s grows: %d rows, and %d before", table, is, was))
		}
	}
	if is, was := now.bytes, before.bytes; is > was+was/10+slackBytes {
		errs = append(errs, fmt.Errorf("the database grows: %.1f MiB, and %.1f before", inMiB(is), inMiB(was)))
	}
	return errors.Join(errs...)
}

// days simulates the days.
type days struct {
	s       *Retention
	w       *testbed.Testbed
	watch   *readiness
	secrets windlassv1connect.EnvironmentServiceClient

	mu       sync.Mutex
	versions int
	calls    int
}

func (s *Retention) newDays(w *testbed.Testbed) *days {
	http := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	options := rpc.ClientOptions(rpc.ClientConfig{Token: w.Stack.APIKey, UserAgent: "windlass-simulator"})
	return &days{
		s: s, w: w, watch: newReadiness(w.DB),
		secrets: windlassv1connect.NewEnvironmentServiceClient(http, w.URL(), options...),
	}
}

func (d *days) countCalls(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls += n
}

// simulateDay simulates a day: first its changes, and then the time until the next day.
func (d *days) simulateDay(ctx context.Context, day int) (leftover, error) {
	begin := time.Now()
	stopWatch := d.watch.startAsking(ctx)
	defer stopWatch()
	brief := fmt.Sprintf("brief-%d", day)
	err := testbed.InParallel(d.s.Apps+1, d.s.Apps+1, func(i int) error {
		if i < d.s.Apps {
			return d.changeApp(ctx, testbed.AppName(i))
		}
		if err := d.changeApp(ctx, brief); err != nil {
			return err
		}
		d.countCalls(1)
		_, err := testbed.Persist(ctx, d.w.API.Apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: testbed.Mutation(), App: testbed.Path(brief)})
		return err
	})
	if err == nil {
		err = d.makeOtherChanges(ctx, day)
	}
	if err == nil {
		err = d.waitQuiet(ctx)
	}
	if err != nil {
		return leftover{}, err
	}
	if err := d.passNight(ctx); err != nil {
		return leftover{}, err
	}
	left, err := d.countRows(ctx)
	left.seconds = time.Since(begin).Seconds()
	return left, err
}

// changeApp makes the changes of one app on one day.
func (d *days) changeApp(ctx context.Context, name string) error {
	app := testbed.App{Name: name, Regions: d.w.Regions, Replicas: 2}
	id := ""
	for range d.s.Deploys {
		d.mu.Lock()
		d.versions++
		app.Version = fmt.Sprint("v", d.versions)
		d.mu.Unlock()
		var err error
		if id, err = d.w.Deploy(ctx, app); err != nil {
			return err
		}
		if err := d.watch.waitReady(ctx, id, name); err != nil {
			return err
		}
	}
	for n := range d.s.Scales {
		if err := d.w.Scale(ctx, name, "", 1+n%2); err != nil {
			return err
		}
	}
	for range d.s.Crashes {
		for _, m := range d.w.Fleet.Members() {
			if err := m.Runtime.Crash(id); err != nil {
				return fmt.Errorf("crash %s in region %s: %w", name, m.Region, err)
			}
		}
		if err := waitFor(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	d.countCalls(d.s.Deploys + d.s.Scales + d.s.Crashes*d.s.Regions)
	return nil
}

// makeOtherChanges makes the other changes of a day: it creates and deletes an environment with a secret and a region,
// makes a join token, and rotates a secret.
func (d *days) makeOtherChanges(ctx context.Context, day int) error {
	name := fmt.Sprintf("brief-%d", day)
	path := strings.Split(testbed.Environment, "/")[0] + "/" + name
	steps := []func() error{
		func() error {
			_, err := d.secrets.CreateEnvironment(ctx, &windlassv1.CreateEnvironmentRequest{
				Mutation: testbed.Mutation(), Project: strings.Split(testbed.Environment, "/")[0], Name: name,
			})
			return err
		},
		func() error { return d.setSecret(ctx, path, name) },
		func() error {
			_, err := d.secrets.DeleteEnvironment(ctx, &windlassv1.DeleteEnvironmentRequest{Mutation: testbed.Mutation(), Environment: path})
			return err
		},
		func() error {
			_, err := d.w.API.Regions.CreateRegion(ctx, &windlassv1.CreateRegionRequest{Mutation: testbed.Mutation(), Name: name})
			return err
		},
		func() error {
			_, err := d.w.API.Regions.CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{Mutation: testbed.Mutation(), Region: name, TtlSeconds: 600})
			return err
		},
		func() error {
			_, err := d.w.API.Regions.DeleteRegion(ctx, &windlassv1.DeleteRegionRequest{Mutation: testbed.Mutation(), Region: name})
			return err
		},
	}
	for range 4 {
		steps = append(steps,
			func() error { return d.setSecret(ctx, testbed.Environment, "token") },
			func() error {
				_, err := d.w.API.Regions.CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{
					Mutation: testbed.Mutation(), Region: d.w.Regions[0], TtlSeconds: 600,
				})
				return err
			})
	}
	for n, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("chore %d: %w", n+1, err)
		}
	}
	d.countCalls(len(steps))
	return nil
}

func (d *days) setSecret(ctx context.Context, environment, name string) error {
	_, err := d.secrets.SetSecret(ctx, &windlassv1.SetSecretRequest{
		Mutation: testbed.Mutation(), Environment: environment, Name: name, Value: fmt.Sprint("value at ", time.Now()),
	})
	return err
}

// waitQuiet waits until no change of the day is under way.
func (d *days) waitQuiet(ctx context.Context) error {
	var moving, rollouts, deleting int64
	return testbed.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		err := d.w.DB.QueryRowContext(ctx, `SELECT
			(SELECT COUNT(*) FROM deployment_topology WHERE status IN (?, ?)),
			(SELECT COUNT(*) FROM rollouts WHERE finished_at = 0),
			(SELECT COUNT(*) FROM apps WHERE deleting_since > 0 AND deleted_at = 0)`,
			int32(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING), int32(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING),
		).Scan(&moving, &rollouts, &deleting)
		return moving+rollouts+deleting == 0, err
	}, func() string {
		return fmt.Sprintf("%d places and %d rollouts are on their way, and %d apps are being deleted", moving, rollouts, deleting)
	})
}

// passNight sets the timestamps that retention uses back by a day. It then waits until the control plane has
// checked all rows.
func (d *days) passNight(ctx context.Context) error {
	ms := aDay.Milliseconds()
	for _, query := range []string{
		"UPDATE deployment_topology SET updated_at = updated_at - ?",
		"UPDATE instances SET terminated_at = terminated_at - ? WHERE terminated_at > 0",
		"UPDATE apps SET deleted_at = deleted_at - ? WHERE deleted_at > 0",
		"UPDATE idempotency SET created_at = created_at - ?",
		"UPDATE join_tokens SET expires_at = expires_at - ?",
		// Retention of the audit uses its ids, which begin with the time.
		"UPDATE audit SET id = CONCAT('aud_', LPAD(LOWER(HEX(CONV(SUBSTRING(id, 5, 12), 16, 10) - ?)), 12, '0'), SUBSTRING(id, 17))",
	} {
		if _, err := d.w.DB.ExecContext(ctx, query, ms); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
	}
	rounds := func() (float64, error) {
		m, err := d.w.Metrics(ctx)
		return m.Sum("windlass_forget_rounds_total", ""), err
	}
	before, err := rounds()
	if err != nil {
		return err
	}
	// One round of each replica may have begun before.
	want := before + 2*float64(len(d.w.Stack.Planes()))
	var now float64
	return testbed.Until(ctx, 100*time.Millisecond, func() (_ bool, err error) {
		now, err = rounds()
		return now >= want, err
	}, func() string {
		return fmt.Sprintf("%.0f of %.0f rounds of forgetting are done", now-before, want-before)
	})
}

// countRows counts the rows of every table.
func (d *days) countRows(ctx context.Context) (leftover, error) {
	out := leftover{rows: map[string]int64{}}
	tables, err := d.w.DB.Strings(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
	if err != nil {
		return out, err
	}
	for _, table := range tables {
		if out.rows[table], err = d.w.DB.Count(ctx, "SELECT COUNT(*) FROM "+table); err != nil {
			return out, err
		}
	}
	if out.bytes, err = sizeOfFiles(d.w.Stack.Folder(stack.MariaDB), ".ibd"); err != nil {
		return out, err
	}
	out.restate, err = sizeOfFiles(d.w.Stack.Folder(stack.Restate), "")
	return out, err
}

// sizeOfFiles returns the size of the files in a folder whose names have the suffix. Files may vanish meanwhile.
func sizeOfFiles(folder, suffix string) (n int64, err error) {
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, suffix) {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := entry.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n, err
}
