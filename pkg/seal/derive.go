package seal

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
)

// derivedBytes is the length of a derived key.
const derivedBytes = 32

// Derive returns a key for the purpose from each enabled key of the set. The key from the primary is the first. All
// processes with the same set get the same keys.
func (b *Box) Derive(purpose string) ([][]byte, error) {
	set := insecurecleartextkeyset.KeysetMaterial(b.handle)
	var out [][]byte
	for _, key := range set.GetKey() {
		if key.GetStatus() != tinkpb.KeyStatusType_ENABLED {
			continue
		}
		derived, err := hkdf.Key(sha256.New, key.GetKeyData().GetValue(), nil, purpose, derivedBytes)
		if err != nil {
			return nil, fmt.Errorf("derive the key of %s: %w", purpose, err)
		}
		if key.GetKeyId() == set.GetPrimaryKeyId() {
			out = slices.Insert(out, 0, derived)
		} else {
			out = append(out, derived)
		}
	}
	return out, nil
}
