// Package keyset manages the keys that seal stored values. It counts the values that each key sealed, seals values
// again with the primary key, and decides whether a key can be removed.
//
// Only the values of secrets are stored sealed. Webhooks and registries refer to secrets. The URL and signing secrets
// of a notification endpoint are stored as a secret whose environment is the endpoint's id. API keys, app keys and
// join tokens are stored as hashes. A key also seals the credentials of agents, which are not stored, and which are
// valid for fleet.CredentialTTL. At its start, each process of the control plane stores in the peers table which keys
// it has, and which key it seals with.
package keyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/seal"
)

// Tx is the part of a transaction that keyset needs.
type Tx interface {
	ListSealedValues(keyID uint32, after model.SealedValue, limit int) ([]model.SealedValue, error)
	ResealValues(values []model.ResealedValue) (int64, error)
	CountSealedValues() (map[uint32]int64, error)
	ListPeers(seenWithin int64) ([]model.Peer, error)
	ListPeerKeys() ([]model.PeerKey, error)
}

// Store runs transactions.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
}

// A process counts as running if it renewed its peer row within the last runningWithin. Processes renew the row
// every few seconds.
const runningWithin = time.Minute

// Usage says how the keys are used.
type Usage struct {
	// Values counts the stored values by the key that sealed them.
	Values map[uint32]int64
	// Sealed is the time since a process that seals with the key was last seen, by key.
	Sealed map[uint32]time.Duration
	// Processes are the running processes of the control plane.
	Processes []Process
}

// Process is a running process of the control plane.
type Process struct {
	ID, Address string
	// Seals is the key with which the process seals. Keys are all its keys. Both are empty for a process of an
	// earlier release, which does not store them.
	Seals uint32
	Keys  []uint32
}

// ReadUsage reads how the keys are used.
func ReadUsage(ctx context.Context, store Store) (Usage, error) {
	usage := Usage{Sealed: map[uint32]time.Duration{}}
	err := store.View(ctx, func(tx Tx) (err error) {
		// Processes are read before values are counted, so that the list has the process of each counted value.
		peers, err := tx.ListPeers(runningWithin.Milliseconds())
		if err != nil {
			return err
		}
		keys, err := tx.ListPeerKeys()
		if err != nil {
			return err
		}
		usage.addProcesses(peers, keys)
		usage.Values, err = tx.CountSealedValues()
		return err
	})
	return usage, err
}

func (u *Usage) addProcesses(peers []model.Peer, keys []model.PeerKey) {
	byID := map[string]int{}
	for i, p := range peers {
		byID[p.ID] = i
		u.Processes = append(u.Processes, Process{ID: p.ID, Address: p.Address})
	}
	for _, k := range keys {
		ago := time.Duration(k.UnseenFor) * time.Millisecond
		if last, ok := u.Sealed[k.KeyID]; k.Seals && (!ok || ago < last) {
			u.Sealed[k.KeyID] = ago
		}
		i, ok := byID[k.PeerID]
		if !ok {
			continue
		}
		p := &u.Processes[i]
		p.Keys = append(p.Keys, k.KeyID)
		if k.Seals {
			p.Seals = k.KeyID
		}
	}
}

// CheckCanOpen returns an error if a running process cannot open values that the key seals.
func (u *Usage) CheckCanOpen(key uint32) error {
	for _, p := range u.Processes {
		if len(p.Keys) == 0 {
			return fmt.Errorf("the control plane %s at %s is of a release that does not say which keys it has: upgrade it first", p.ID, p.Address)
		}
		if !slices.Contains(p.Keys, key) {
			return fmt.Errorf("the control plane %s at %s does not have key %d: restart it with this keyset first", p.ID, p.Address, key)
		}
	}
	return nil
}

// sealersWith returns the addresses of the running processes that seal with the key.
func (u *Usage) sealersWith(key uint32) (addresses []string) {
	for _, p := range u.Processes {
		if p.Seals == key {
			addresses = append(addresses, p.Address)
		}
	}
	return addresses
}

// CheckRemovable returns an error while the key is in use. valid is how long credentials of agents are valid. With 0,
// credentials do not count as use of the key.
func (u *Usage) CheckRemovable(key uint32, valid time.Duration) error {
	if n := u.Values[key]; n > 0 {
		return fmt.Errorf("key %d is in use: %d stored values are sealed with it: run keyset reseal first", key, n)
	}
	if at := u.sealersWith(key); len(at) > 0 {
		return fmt.Errorf("key %d is in use: %d control plane processes seal with it (%s): restart them with a keyset in which another key is primary",
			key, len(at), strings.Join(at, ", "))
	}
	ago, ok := u.Sealed[key]
	if ok && ago < runningWithin {
		return fmt.Errorf("key %d is in use: a control plane sealed with it %s ago: try again in a minute", key, ago.Round(time.Second))
	}
	if ok && ago < valid {
		return fmt.Errorf("key %d is in use: credentials of agents that it sealed can be valid for another %s: wait, or remove it with --end-credentials: these agents must then join again",
			key, (valid - ago).Round(time.Minute))
	}
	return nil
}

// Config configures Reseal.
type Config struct {
	Store Store
	Box   *seal.Box
	// Batch is the number of values that one transaction replaces.
	Batch int
	// DryRun opens and seals the values, but writes nothing.
	DryRun bool
	// Progress is called after each batch, unless it is nil.
	Progress func(Result)
}

// Result is the result of Reseal.
type Result struct {
	// Total is the number of values that were not sealed with the primary key at the start.
	Total int64
	// Resealed counts the values that were sealed again, or that would be without DryRun. Changed counts values that
	// were skipped, because they were deleted or resealed by another run meanwhile.
	Resealed, Changed int64
	// Damaged are the values that no key of the keyset can open.
	Damaged []model.SealedValue
}

// Reseal seals all values that other keys sealed again, with the primary key. Each batch is one transaction, and a
// value is replaced only if it has not changed since it was opened. So Reseal can be interrupted, repeated and run
// concurrently.
func Reseal(ctx context.Context, cfg Config) (Result, error) {
	var result Result
	if cfg.Batch < 1 {
		return result, errors.New("reseal: use a batch of at least 1 value")
	}
	usage, err := ReadUsage(ctx, cfg.Store)
	if err != nil {
		return result, err
	}
	primary := cfg.Box.Primary()
	if err := usage.CheckCanOpen(primary); err != nil {
		return result, err
	}
	for key, n := range usage.Values {
		if key != primary {
			result.Total += n
		}
	}
	var after model.SealedValue
	for {
		var values []model.SealedValue
		err := cfg.Store.View(ctx, func(tx Tx) (err error) {
			values, err = tx.ListSealedValues(primary, after, cfg.Batch)
			return err
		})
		if err != nil || len(values) == 0 {
			return result, err
		}
		after = values[len(values)-1]
		if err := cfg.resealBatch(ctx, values, &result); err != nil {
			return result, err
		}
		if cfg.Progress != nil {
			cfg.Progress(result)
		}
	}
}

func (cfg Config) resealBatch(ctx context.Context, values []model.SealedValue, result *Result) error {
	resealed := make([]model.ResealedValue, 0, len(values))
	for _, v := range values {
		bound := model.SecretContext(v.EnvironmentID, v.Name, v.Version)
		plain, err := cfg.Box.Open(v.Ciphertext, bound)
		if err != nil {
			result.Damaged = append(result.Damaged, v)
			continue
		}
		fresh, err := cfg.Box.Seal(plain, bound)
		if err != nil {
			return err
		}
		resealed = append(resealed, model.ResealedValue{SealedValue: v, Resealed: fresh})
	}
	replaced := int64(len(resealed))
	if !cfg.DryRun {
		err := cfg.Store.Update(ctx, func(tx Tx) (err error) {
			replaced, err = tx.ResealValues(resealed)
			return err
		})
		if err != nil {
			return err
		}
	}
	result.Resealed += replaced
	result.Changed += int64(len(resealed)) - replaced
	return nil
}
