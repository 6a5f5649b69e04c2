package seal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// Key is one key of a keyset.
type Key struct {
	ID uint32
	// Primary seals; the others only open.
	Primary bool
	// Status is "enabled", or why it is not used.
	Status string
}

// Keys lists the keys of the file.
func Keys(path string) ([]Key, error) {
	handle, err := handleOf(path)
	if err != nil {
		return nil, err
	}
	info := handle.KeysetInfo()
	var keys []Key
	for _, k := range info.GetKeyInfo() {
		keys = append(keys, Key{
			ID: k.GetKeyId(), Primary: k.GetKeyId() == info.GetPrimaryKeyId(), Status: strings.ToLower(k.GetStatus().String()),
		})
	}
	return keys, nil
}

// Add adds a key to the file, which only opens until it is made primary. All processes have to read
// the file again before that: what the new key seals, a process without it cannot open.
func Add(path string) (id uint32, err error) {
	return change(path, func(m *keyset.Manager) (uint32, error) { return m.Add(aead.AES256GCMKeyTemplate()) })
}

// Rotate makes the newest key of the file primary. It fails if that is the primary already.
func Rotate(path string) (id uint32, err error) {
	keys, err := Keys(path)
	if err != nil {
		return 0, err
	}
	newest := keys[len(keys)-1]
	if newest.Primary {
		return 0, errors.New("the newest key is the primary already: add one first")
	}
	return change(path, func(m *keyset.Manager) (uint32, error) { return newest.ID, m.SetPrimary(newest.ID) })
}

func handleOf(path string) (*keyset.Handle, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data)))
	if err != nil {
		return nil, fmt.Errorf("key file %s: read keyset: %w", path, err)
	}
	return handle, nil
}

func change(path string, do func(*keyset.Manager) (uint32, error)) (uint32, error) {
	handle, err := handleOf(path)
	if err != nil {
		return 0, err
	}
	manager := keyset.NewManagerFromHandle(handle)
	id, err := do(manager)
	if err != nil {
		return 0, fmt.Errorf("key file %s: %w", path, err)
	}
	if handle, err = manager.Handle(); err != nil {
		return 0, fmt.Errorf("key file %s: %w", path, err)
	}
	var buf bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&buf)); err != nil {
		return 0, fmt.Errorf("write keyset: %w", err)
	}
	return id, write(path, buf.Bytes(), os.Rename)
}
