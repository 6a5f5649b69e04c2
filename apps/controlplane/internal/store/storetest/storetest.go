// Package storetest is one test suite for every store.Store. Because the store in memory and the database both pass
// it, a test may use the former in place of the latter.
//
// A subtest's name states a guarantee. Where transactions must overlap, one of them waits inside its function for the
// other to commit. This is done only where the contract says that they do not wait for each other. Other tests of
// concurrency start many transactions at once and check what is left.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Run runs the suite. open returns an empty store, and closes it at the end of the given test. Tests run one after
// another, so open may empty a database that all tests share.
func Run(t *testing.T, open func(t testing.TB) store.Store) {
	for _, g := range []struct {
		name  string
		tests func(*testing.T, setup)
	}{
		{"Transactions", testTransactions},
		{"UpdateBatched", testUpdateBatched},
		{"Commits", testCommits},
		{"Rows", testRows},
		{"Tenants", testTenants},
		{"Secrets", testSecrets},
		{"Sealed", testSealed},
		{"Apps", testApps},
		{"Stagings", testRolloutStates},
		{"Wakes", testWakes},
		{"Topology", testTopology},
		{"Observed", testObserved},
		{"Instances", testInstances},
		{"Regions", testRegions},
		{"Sessions", testSessions},
		{"Quarantine", testQuarantine},
		{"Feed", testFeed},
		{"Desired", testDesired},
		{"Records", testRecords},
		{"Pages", testPages},
		{"Retention", testRetention},
		{"Peers", testPeers},
		{"Admission", testAdmission},
		{"Features", testFeatures},
		{"Presets", testPresets},
		{"Freezes", testFreezes},
		{"Protections", testProtections},
		{"Notifications", testNotifications},
		{"Scaling", testScaling},
		{"Pins", testPins},
		{"Domains", testDomains},
		{"AppKeys", testAppKeys},
		{"BrowserSessions", testBrowserSessions},
		{"Members", testMembers},
		{"CrossRegion", testCrossRegion},
	} {
		t.Run(g.name, func(t *testing.T) {
			g.tests(t, func(t *testing.T) *fixture { return newFixture(t, open(t)) })
		})
	}
}

// setup makes a fixture for one test.
type setup func(*testing.T) *fixture

// now is the time of all that the suite writes.
const now int64 = 1_800_000_000_000

// fixture is a store with one tenant in it.
type fixture struct {
	t   *testing.T
	s   store.Store
	ws  string
	prj string
	env string
}

func newFixture(t *testing.T, s store.Store) *fixture {
	w := &fixture{t: t, s: s, ws: ident.New("ws"), prj: ident.New("prj"), env: ident.New("env")}
	w.update(func(tx store.Tx) error {
		if err := tx.InsertWorkspace(model.Workspace{ID: w.ws, Name: "acme", CreatedAt: now, UpdatedAt: now, ResourceVersion: 1}); err != nil {
			return err
		}
		if err := tx.InsertProject(model.Project{ID: w.prj, WorkspaceID: w.ws, Name: "default", CreatedAt: now, UpdatedAt: now, ResourceVersion: 1}); err != nil {
			return err
		}
		return tx.InsertEnvironment(model.Environment{
			ID: w.env, WorkspaceID: w.ws, ProjectID: w.prj, Name: "production",
			Variables: map[string]string{"LOG": "info"}, CreatedAt: now, UpdatedAt: now, ResourceVersion: 1,
		})
	})
	return w
}

func (w *fixture) update(fn func(store.Tx) error) {
	w.t.Helper()
	require.NoError(w.t, w.s.Update(w.t.Context(), fn))
}

// requireFails is update, which must fail with the error want.
func (w *fixture) requireFails(want error, fn func(store.Tx) error) {
	w.t.Helper()
	require.ErrorIs(w.t, w.s.Update(w.t.Context(), fn), want)
}

// read returns the result of f in a View.
func read[V any](w *fixture, f func(store.Tx) (V, error)) V {
	w.t.Helper()
	var v V
	require.NoError(w.t, w.s.View(w.t.Context(), func(tx store.Tx) (err error) {
		v, err = f(tx)
		return err
	}))
	return v
}

// write returns the result of f in an Update of its own.
func write[V any](w *fixture, f func(store.Tx) (V, error)) V {
	w.t.Helper()
	var v V
	w.update(func(tx store.Tx) (err error) {
		v, err = f(tx)
		return err
	})
	return v
}

// requireMissing asserts that a read finds nothing.
func requireMissing[V any](w *fixture, f func(store.Tx) (V, error)) {
	w.t.Helper()
	err := w.s.View(w.t.Context(), func(tx store.Tx) error {
		_, err := f(tx)
		return err
	})
	require.ErrorIs(w.t, err, model.ErrNotFound)
}

func (w *fixture) newApp(name string) model.App {
	return model.App{
		ID: ident.New("app"), WorkspaceID: w.ws, ProjectID: w.prj, EnvironmentID: w.env, Name: name,
		Status: windlassv1.AppStatus_APP_STATUS_IDLE, Replicas: 2, CreatedAt: now, UpdatedAt: now, ResourceVersion: 1,
	}
}

func (w *fixture) insertApp(name string) model.App {
	w.t.Helper()
	a := w.newApp(name)
	w.update(func(tx store.Tx) error { return tx.InsertApp(a) })
	return a
}

func (w *fixture) newDeployment(a model.App, version int32, secrets ...string) model.Deployment {
	spec := &windlassv1.DeploymentSpec{Command: []string{"serve", fmt.Sprint(version)}, Env: map[string]string{"A": "b"}}
	for _, s := range secrets {
		spec.Secrets = append(spec.Secrets, &windlassv1.SecretReference{EnvName: "S_" + s, Secret: s})
	}
	return model.Deployment{
		ID: ident.New("dep"), WorkspaceID: a.WorkspaceID, AppID: a.ID, Version: version, Spec: spec,
		SpecHash: []byte{1, byte(version)}, MadeAs: []byte{2, byte(version)}, RolesMade: "roles\x00\xff", Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
		Source: "deploy", CreatedBy: "suite", CreatedAt: now,
	}
}

func (w *fixture) insertDeployment(a model.App, version int32, secrets ...string) model.Deployment {
	w.t.Helper()
	d := w.newDeployment(a, version, secrets...)
	w.update(func(tx store.Tx) error { return tx.InsertDeployment(d) })
	return d
}

// newTopology is a topology row of the deployment.
func newTopology(d model.Deployment, regionID string, generation int64) model.Topology {
	return model.Topology{
		WorkspaceID: d.WorkspaceID, AppID: d.AppID, DeploymentID: d.ID, RegionID: regionID, Replicas: 2,
		Generation: generation, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, CreatedAt: now, UpdatedAt: now,
	}
}

func (w *fixture) put(rows ...model.Topology) {
	w.t.Helper()
	w.update(func(tx store.Tx) error { return tx.PutTopology(rows) })
}

// newRegion makes a region of the platform.
func (w *fixture) newRegion(name string) string {
	w.t.Helper()
	r := model.Region{
		ID: ident.New("reg"), Name: name, Status: windlassv1.RegionStatus_REGION_STATUS_PENDING,
		CreatedAt: now, UpdatedAt: now, ResourceVersion: 1,
	}
	w.update(func(tx store.Tx) error { return tx.InsertRegion(r) })
	return r.ID
}

// newRegions makes n regions; their ids ascend.
func (w *fixture) newRegions(n int) []string {
	w.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = w.newRegion(fmt.Sprintf("region-%02d", i))
	}
	return ids
}

// commitChange commits one change.
func (w *fixture) commitChange(regionID string, generation int64) {
	w.t.Helper()
	w.update(func(tx store.Tx) error {
		tx.Change(regionID, model.KindDeployment, "dep_x", generation)
		return nil
	})
}

func (w *fixture) headOf(regionID string) model.Head {
	w.t.Helper()
	return read(w, func(tx store.Tx) (model.Head, error) { return tx.GetHead(regionID) })
}

// readFeed reads the region's whole feed.
func (w *fixture) readFeed(regionID string) []model.Change {
	w.t.Helper()
	return read(w, func(tx store.Tx) ([]model.Change, error) {
		return tx.Changes(map[string]int64{regionID: 0}, 1_000_000)
	})
}

// runTogether runs n functions at once and returns their errors.
func runTogether(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// runUpdates runs n transactions at once, and returns their errors. As many of them as possible have read and written
// before the first commits.
func (w *fixture) runUpdates(n int, f func(i int, tx store.Tx) error) []error {
	var arrived atomic.Int32
	return runTogether(n, func(i int) error {
		return w.s.Update(w.t.Context(), func(tx store.Tx) error {
			if err := f(i, tx); err != nil {
				return err
			}
			meetOthers(&arrived, n)
			return nil
		})
	})
}

// meetOthers returns when n have arrived, or after a while. A transaction that waits for the lock of an arrived one does not
// arrive.
func meetOthers(arrived *atomic.Int32, n int) {
	arrived.Add(1)
	for range 1000 {
		if int(arrived.Load()) >= n {
			return
		}
		runtime.Gosched()
	}
}

// oneWins asserts that exactly one of n calls succeeded, and that the others failed with one of the errors want.
func oneWins(t *testing.T, errs []error, want ...error) {
	t.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		lost := false
		for _, e := range want {
			lost = lost || errors.Is(err, e)
		}
		require.True(t, lost, "a loser ended with %v", err)
	}
	require.Equal(t, 1, won)
}

// runOverlapping runs first until its function waits, commits second, calls between, and lets first go on. Neither may need a
// row that the other locked.
func (w *fixture) runOverlapping(first, second func(store.Tx) error, between func()) {
	w.t.Helper()
	started, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ended := make(chan error, 1)
	go func() {
		ended <- w.s.Update(context.WithoutCancel(w.t.Context()), func(tx store.Tx) error {
			if err := first(tx); err != nil {
				return err
			}
			once.Do(func() { close(started) })
			<-release
			return nil
		})
	}()
	select {
	case <-started:
	case err := <-ended:
		require.NoError(w.t, err)
		require.FailNow(w.t, "the first transaction ended before it was to wait")
	}
	err := w.s.Update(w.t.Context(), second)
	between()
	close(release)
	require.NoError(w.t, <-ended)
	require.NoError(w.t, err)
}

// requireSame is require.Equal for rows, some of which hold a proto message.
func requireSame(t require.TestingT, want, got any) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	require.Equal(t, withoutSpecs(want), withoutSpecs(got))
}

// withoutSpecs replaces the spec of deployments, wherever they are in v, by its
// deterministic encoding, and an empty map by none.
func withoutSpecs(v any) any {
	switch v := v.(type) {
	case model.Deployment:
		return plainDeployment(v)
	case []model.Deployment:
		out := make([]any, len(v))
		for i, d := range v {
			out[i] = plainDeployment(d)
		}
		return out
	case model.DesiredItem:
		return plainItem(v)
	case []model.DesiredItem:
		out := make([]any, len(v))
		for i, it := range v {
			out[i] = plainItem(it)
		}
		return out
	}
	return v
}

type plain struct {
	row  any
	spec string
}

func plainDeployment(d model.Deployment) plain {
	spec := encodeSpec(d.Spec)
	d.Spec = nil
	return plain{d, spec}
}

func plainItem(it model.DesiredItem) plain {
	spec := encodeSpec(it.Deployment.Spec)
	// Fields that no agent is sent may be set or not.
	d, r := it.Deployment, &it.Topology
	it.Deployment = model.Deployment{
		ID: d.ID, WorkspaceID: d.WorkspaceID, AppID: d.AppID, Version: d.Version, SpecHash: d.SpecHash, MadeAs: d.MadeAs,
		RolesMade: d.RolesMade, ResolvedImage: d.ResolvedImage,
	}
	r.CreatedAt, r.UpdatedAt = 0, 0
	if len(it.SecretVersions) == 0 {
		it.SecretVersions = nil
	}
	return plain{it, spec}
}

func encodeSpec(s *windlassv1.DeploymentSpec) string {
	if s == nil {
		return "none"
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return "invalid: " + err.Error()
	}
	return string(b)
}

// filledRow returns a row with every field set to a value that no other field has, so that a column that is forgotten or
// swapped is found.
func filledRow[V any]() V {
	var v V
	n := 0
	fillValue(reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fillValue(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fillValue(f, n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("f-%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32:
		if v.Type().Implements(reflect.TypeFor[interface{ EnumDescriptor() ([]byte, []int) }]()) {
			v.SetInt(1)
			return
		}
		v.SetInt(int64(1000 + *n))
	case reflect.Int64:
		v.SetInt(int64(1_000_000_000_000 + *n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillValue(v.Index(i), n)
		}
	case reflect.Uint8:
		v.SetUint(uint64(*n))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{fmt.Sprintf("k-%d", *n): "v", "other": ""}))
	case reflect.Pointer:
		v.Set(reflect.ValueOf(&windlassv1.DeploymentSpec{
			Command: []string{"serve", "ü"}, Env: map[string]string{"A": "1", "B": "2"}, MinReady: 1, VersionLabel: "v1",
		}))
	default:
		panic("storetest: a row has a field of kind " + v.Kind().String())
	}
}
