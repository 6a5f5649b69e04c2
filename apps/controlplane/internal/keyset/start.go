package keyset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckStart returns an error if a process with these keys must not start, because its keyset file is wrong. The
// process seals with primary. The file is wrong if the process cannot open values of other processes, if other
// processes cannot open its values, or if the database was only used with other keys.
//
// Two processes that start at the same time with an unused database do not find each other.
func (u *Usage) CheckStart(keys []uint32, primary uint32) error {
	for _, p := range u.Processes {
		switch {
		case len(p.Keys) == 0: // a process of a release that does not store its keys
		case !slices.Contains(keys, p.Seals):
			return fmt.Errorf("the control plane %s at %s seals with key %d, which the file does not have: use the keyset file of that control plane", p.ID, p.Address, p.Seals)
		case !slices.Contains(p.Keys, primary):
			return fmt.Errorf("the control plane %s at %s does not have key %d, with which this control plane would seal: use the keyset file of the other control plane. If you rotate the key, restart all replicas after \"keyset add\" and before \"keyset rotate\"",
				p.ID, p.Address, primary)
		}
	}
	known := u.knownKeys()
	if len(known) > 0 && !slices.ContainsFunc(keys, func(k uint32) bool { return slices.Contains(known, k) }) {
		return fmt.Errorf("the database was used with the keys %s, but the file has none of these: use the keyset file with these keys", joinKeys(known))
	}
	return nil
}

// MissingKeys returns the keys that sealed stored values and are not in keys, in ascending order.
func (u *Usage) MissingKeys(keys []uint32) []uint32 {
	missing := maps.Clone(u.Values)
	for _, k := range keys {
		delete(missing, k)
	}
	return slices.Sorted(maps.Keys(missing))
}

// knownKeys returns the keys that sealed stored values, and recently used keys, which may have sealed credentials of
// agents.
func (u *Usage) knownKeys() []uint32 {
	known := map[uint32]bool{}
	for k := range u.Values {
		known[k] = true
	}
	for k := range u.Sealed {
		known[k] = true
	}
	return slices.Sorted(maps.Keys(known))
}

func joinKeys(keys []uint32) string {
	var texts []string
	for _, k := range keys {
		texts = append(texts, fmt.Sprint(k))
	}
	return strings.Join(texts, ", ")
}
