package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// dns answers with records or errors by name. Other names have no records.
type dns struct {
	texts map[string][]string
	errs  map[string]error
	asked atomic.Int64
}

func (d *dns) lookup(_ context.Context, name string) ([]string, error) {
	d.asked.Add(1)
	return d.texts[name], d.errs[name]
}

// addVerified inserts verified domains of app_1, which were checked at the time.
func (h *harness) addVerified(at int64, names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.update(func(tx store.Tx) error {
			return errors.Join(
				tx.InsertDomain(model.Domain{Name: name, WorkspaceID: "ws_1", AppID: "app_1", Token: "t-" + name, CreatedAt: at}),
				tx.VerifyDomain("app_1", name, at))
		})
	}
}

func (h *harness) domains() map[string]model.Domain {
	h.t.Helper()
	out := map[string]model.Domain{}
	require.NoError(h.t, h.db.View(h.t.Context(), func(tx store.Tx) error {
		all, err := tx.DomainsOfApps([]string{"app_1"})
		for _, d := range all {
			out[d.Name] = d
		}
		return err
	}))
	return out
}

func (h *harness) historyKinds() (what []string) {
	h.t.Helper()
	require.NoError(h.t, h.db.View(h.t.Context(), func(tx store.Tx) error {
		entries, err := tx.ListHistory("ws_1", "app_1", model.Page{Limit: 100})
		for _, e := range entries {
			what = append([]string{e.What}, what...)
		}
		return err
	}))
	return what
}

func TestDomain_LapsesAfterSomeTimeAndContinuesToServe(t *testing.T) {
	h := setup(t)
	now := time.UnixMilli(1_700_000_000_000)
	began := now.UnixMilli()
	record := func(name string) string { return model.DomainRecord(name) + "." }
	const kept, gone, changed, away = "a.example.com", "b.example.com", "c.example.com", "d.example.com"
	answers := &dns{
		texts: map[string][]string{record(kept): {"other", " t-" + kept}, record(changed): {"t-other"}},
		errs:  map[string]error{record(away): errors.New("server misbehaving")},
	}
	h.svc.cfg.LookupTXT = answers.lookup
	h.addVerified(began, kept, gone, changed, away)
	h.update(func(tx store.Tx) error { // a domain that is not verified is not looked up
		return tx.InsertDomain(model.Domain{Name: "e.example.com", WorkspaceID: "ws_1", AppID: "app_1", Token: "t-e"})
	})
	look := func(random float64) { require.NoError(t, h.svc.checkDomains(t.Context(), now, random)) }

	now = now.Add(domainsEvery)
	look(0.1)
	require.Zero(t, answers.asked.Load(), "the domains were looked up recently")
	now = now.Add(time.Hour)
	look(0.1)
	require.EqualValues(t, 4, answers.asked.Load())
	look(0)
	require.EqualValues(t, 4, answers.asked.Load())
	missed := now.UnixMilli()
	for name, since := range map[string]int64{kept: 0, gone: missed, changed: missed, away: 0} {
		d := h.domains()[name]
		require.Equal(t, []int64{began, missed, since, 0}, []int64{d.VerifiedAt, d.CheckedAt, d.MissingSince, d.LapsedAt}, name)
	}
	require.Equal(t, []string{"DomainRecordMissing", "DomainRecordMissing"}, h.historyKinds())

	// Time without an answer of the DNS does not count.
	answers.errs[record(gone)] = context.DeadlineExceeded
	now = now.Add(model.DomainPatience)
	look(0)
	require.Zero(t, h.domains()[gone].LapsedAt)
	require.Equal(t, now.UnixMilli(), h.domains()[changed].LapsedAt)
	lapsed := now.UnixMilli()
	delete(answers.errs, record(gone))
	answers.texts[record(gone)] = []string{"t-" + gone}
	now = now.Add(domainsEvery + time.Hour)
	look(0)
	require.Zero(t, h.domains()[gone].MissingSince)
	require.Equal(t, lapsed, h.domains()[changed].LapsedAt, "the domain lapsed at this time")
	require.Equal(t, []string{"DomainRecordMissing", "DomainRecordMissing", "DomainLapsed", "DomainRecordFound"}, h.historyKinds())

	answers.texts[record(changed)] = []string{"t-" + changed}
	now = now.Add(domainsEvery + time.Hour)
	look(0)
	for name, d := range h.domains() {
		require.Zero(t, d.LapsedAt, name)
		require.Equal(t, name != "e.example.com", d.VerifiedAt == began, "%s: no round removes a domain", name)
	}
}

func TestDomains_RoundHasALimitedNumberOfQueries(t *testing.T) {
	h := setup(t)
	answers := &dns{}
	h.svc.cfg.LookupTXT = answers.lookup
	var names []string
	for i := range domainsBatch + 5 {
		names = append(names, fmt.Sprintf("d%03d.example.com", i))
	}
	h.addVerified(1, names...)
	now := time.UnixMilli(1_700_000_000_000)
	before := h.views.Load()
	require.NoError(t, h.svc.checkDomains(t.Context(), now, 0))
	require.EqualValues(t, domainsBatch, answers.asked.Load())
	require.EqualValues(t, 1, h.views.Load()-before)
	require.Zero(t, h.domains()[names[domainsBatch]].CheckedAt-1)
	require.NoError(t, h.svc.checkDomains(t.Context(), now.Add(time.Minute), 0))
	require.EqualValues(t, domainsBatch+5, answers.asked.Load(), "domains with the oldest checks come first")
}

func TestDomain_ChangeDuringALookupIsKept(t *testing.T) {
	h := setup(t)
	h.addVerified(1, "a.example.com")
	h.svc.cfg.LookupTXT = func(context.Context, string) ([]string, error) {
		h.update(func(tx store.Tx) error { return tx.VerifyDomain("app_1", "a.example.com", 77) })
		return nil, nil
	}
	require.NoError(t, h.svc.checkDomains(t.Context(), time.UnixMilli(1_700_000_000_000), 0))
	require.Zero(t, h.domains()["a.example.com"].MissingSince)
	require.Empty(t, h.historyKinds())
}
