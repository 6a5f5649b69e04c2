package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Verified domains are checked again, because a name may have changed hands. Each round asks the DNS, outside
// of any transaction, for the records of domains whose last check is the oldest. It stores all answers in one
// transaction. A check never takes a domain from an app. Only a plain answer counts, so an unreachable or
// failing DNS changes nothing.
const (
	// domainsEvery is how long an answer is valid. The time is up to half longer at random, so that domains that
	// were verified together are not always checked together.
	domainsEvery = 8 * time.Hour
	// domainsBatch is how many domains a round checks, and domainsAtOnce how many at a time. If the DNS answers
	// none, they take half of maintainTimeout.
	domainsBatch  = 200
	domainsAtOnce = 32
	// lookupTimeout bounds one look-up.
	lookupTimeout = 4 * time.Second
	// ourselves is the author of history entries, as in the planner.
	ourselves = "windlass"
)

// checkDomains checks the domains that are due. random is in [0, 1).
func (s *Service) checkDomains(ctx context.Context, now time.Time, random float64) error {
	before := now.Add(-domainsEvery - time.Duration(random*float64(domainsEvery/2))).UnixMilli()
	var due []model.Domain
	err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		due, err = tx.DomainsToCheck(before, domainsBatch)
		return err
	})
	if err != nil || len(due) == 0 {
		return err
	}
	found := s.askFor(ctx, due)
	return s.cfg.Store.Update(ctx, func(tx Tx) error { return noteFindings(tx, due, found, now.UnixMilli()) })
}

// askFor asks the DNS for the record of each domain.
func (s *Service) askFor(ctx context.Context, due []model.Domain) []model.DomainFinding {
	out := make([]model.DomainFinding, len(due))
	slots := make(chan struct{}, domainsAtOnce)
	var wg sync.WaitGroup
	for i, d := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			out[i] = d.Finding(s.cfg.LookupTXT(bounded, model.DomainRecord(d.Name)+"."))
		})
	}
	wg.Wait()
	return out
}

// noteFindings stores the findings of domains that have not changed since they were read, and adds what is
// new to their apps' histories.
func noteFindings(tx Tx, due []model.Domain, found []model.DomainFinding, at int64) error {
	names := make([]string, len(due))
	asked := make(map[model.Domain]model.DomainFinding, len(due))
	for i, d := range due {
		names[i], asked[d] = d.Name, found[i]
	}
	now, err := tx.LockHeldDomains(names)
	if err != nil {
		return fmt.Errorf("lock %d domains: %w", len(names), err)
	}
	var checks model.DomainChecks
	var history []model.History
	for _, d := range now {
		finding, same := asked[d]
		if !same {
			continue
		}
		next, what, why := d.Checked(finding, at)
		switch finding {
		case model.DomainFound:
			checks.Found = append(checks.Found, d.Name)
		case model.DomainMissing:
			checks.Missing = append(checks.Missing, d.Name)
		case model.DomainUnanswered:
			checks.Unanswered = append(checks.Unanswered, d.Name)
		}
		if next.LapsedAt != 0 && d.LapsedAt == 0 {
			checks.Lapsed = append(checks.Lapsed, d.Name)
		}
		if what != "" {
			history = append(history, model.History{
				ID: ident.New("hst"), WorkspaceID: d.WorkspaceID, AppID: d.AppID, At: at, Who: ourselves, What: what, Why: why,
			})
		}
	}
	if err := tx.NoteDomainChecks(checks, at); err != nil {
		return err
	}
	if len(history) == 0 {
		return nil
	}
	return tx.InsertHistory(history)
}
