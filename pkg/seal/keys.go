package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/core/cryptofmt"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
)

// Key is one key of a keyset.
type Key struct {
	ID uint32
	// Primary reports whether the key seals. Other keys only open.
	Primary bool
	// Status is "enabled", or the reason why the key is not used.
	Status string
}

// Keys returns the keys of the file.
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

// Add adds a key to the file. The key only opens until it is primary. Before it becomes primary, all processes must
// read the file again, because a process without the key cannot open values that the key sealed.
func Add(path string) (id uint32, err error) {
	return changeKeyset(path, func(m *keyset.Manager) (uint32, error) { return m.Add(aead.AES256GCMKeyTemplate()) })
}

// Rotate makes the newest key of the file primary. It fails if that key is already primary.
func Rotate(path string) (id uint32, err error) {
	keys, err := Keys(path)
	if err != nil {
		return 0, err
	}
	newest := keys[len(keys)-1]
	if newest.Primary {
		return 0, errors.New("the newest key is the primary already: add a key first")
	}
	return changeKeyset(path, func(m *keyset.Manager) (uint32, error) { return newest.ID, m.SetPrimary(newest.ID) })
}

// Remove removes a key from the file. Values that the key sealed cannot be opened with this file any more. It
// fails for the primary.
func Remove(path string, id uint32) error {
	keys, err := Keys(path)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
	if at < 0 {
		return fmt.Errorf("key file %s has no key %d", path, id)
	}
	if keys[at].Primary {
		return fmt.Errorf("key %d is the primary: make another key primary first", id)
	}
	_, err = changeKeyset(path, func(m *keyset.Manager) (uint32, error) { return id, m.Delete(id) })
	return err
}

// prefixBytes is the length of a sealed value's prefix. The prefix has the version of Tink's format and the key's ID.
const prefixBytes = cryptofmt.TinkPrefixSize

// KeyOf returns the key that sealed the value. ok is false if the value names no key.
func KeyOf(sealed []byte) (id uint32, ok bool) {
	if len(sealed) < prefixBytes || sealed[0] != cryptofmt.TinkStartByte {
		return 0, false
	}
	return binary.BigEndian.Uint32(sealed[1:prefixBytes]), true
}

// Prefix returns the prefix of all values that the key sealed.
func Prefix(id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{cryptofmt.TinkStartByte}, id)
}

// Keys returns the enabled keys in the order of the keyset.
func (b *Box) Keys() []uint32 {
	var ids []uint32
	for _, k := range b.handle.KeysetInfo().GetKeyInfo() {
		if k.GetStatus() == tinkpb.KeyStatusType_ENABLED {
			ids = append(ids, k.GetKeyId())
		}
	}
	return ids
}

// Primary returns the key that seals.
func (b *Box) Primary() uint32 { return b.handle.KeysetInfo().GetPrimaryKeyId() }

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

func changeKeyset(path string, do func(*keyset.Manager) (uint32, error)) (uint32, error) {
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
