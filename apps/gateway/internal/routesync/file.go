package routesync

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// The file of the last known table has these parts:
//
//   - a line with fileHead and the table_id
//   - for each app, the length of its AppRoutes and the AppRoutes
//   - a length of 0
//   - if the Neighbours of the region are known, their length and the Neighbours
//   - the CRC-32 of all parts above, big endian
const fileHead = "windlass-gateway-routes 1 "

// held is the content of the file: the routes of each app as the agent sent them, and the other regions.
type savedRoutes struct {
	tableID    string
	apps       map[string][]byte
	neighbours *neighbours.Picture // nil: not known
}

func encode(h savedRoutes) []byte {
	size := len(fileHead) + len(h.tableID) + 1 + 1 + crc32.Size
	for _, app := range h.apps {
		size += binary.MaxVarintLen64 + len(app)
	}
	out := make([]byte, 0, size)
	out = append(append(append(out, fileHead...), h.tableID...), '\n')
	for _, id := range slices.Sorted(maps.Keys(h.apps)) {
		out = binary.AppendUvarint(out, uint64(len(h.apps[id])))
		out = append(out, h.apps[id]...)
	}
	out = binary.AppendUvarint(out, 0)
	if h.neighbours != nil {
		// Marshal fails only for texts that are not UTF-8, which no received message has.
		if line, err := (proto.MarshalOptions{Deterministic: true}).Marshal(h.neighbours.Whole()); err == nil {
			out = append(binary.AppendUvarint(out, uint64(len(line))), line...)
		}
	}
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
}

func decode(data []byte) (savedRoutes, error) {
	h := savedRoutes{apps: map[string][]byte{}}
	if len(data) < crc32.Size || crc32.ChecksumIEEE(data[:len(data)-crc32.Size]) != binary.BigEndian.Uint32(data[len(data)-crc32.Size:]) {
		return h, errors.New("its checksum is wrong")
	}
	r := bufio.NewReader(bytes.NewReader(data[:len(data)-crc32.Size]))
	head, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(head, fileHead) {
		return h, errors.New("it is not a table of routes of this release or an earlier one")
	}
	h.tableID = strings.TrimSpace(strings.TrimPrefix(head, fileHead))
	for {
		line, err := readLine(r, len(data))
		if err != nil {
			return h, err
		}
		if len(line) == 0 {
			break
		}
		app := &gatewayv1.AppRoutes{}
		if err := proto.Unmarshal(line, app); err != nil {
			return h, fmt.Errorf("routes: %w", err)
		}
		h.apps[app.AppId] = line
	}
	if _, err := r.Peek(1); errors.Is(err, io.EOF) {
		return h, nil
	}
	line, err := readLine(r, len(data))
	if err != nil {
		return h, err
	}
	message := &gatewayv1.Neighbours{}
	if err := proto.Unmarshal(line, message); err != nil {
		return h, fmt.Errorf("neighbours: %w", err)
	}
	h.neighbours = h.neighbours.With(message)
	return h, nil
}

// readLine reads a length, and then that number of bytes. most is the largest valid length.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil || n > uint64(most) {
		return nil, errors.New("a length is wrong")
	}
	line := make([]byte, n)
	if _, err := io.ReadFull(r, line); err != nil {
		return nil, fmt.Errorf("it ends early: %w", err)
	}
	return line, nil
}

// loadFile reads the file. found is false if the file does not exist.
func loadFile(path string) (h savedRoutes, found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return savedRoutes{apps: map[string][]byte{}}, false, nil
	}
	if err == nil {
		h, err = decode(data)
	}
	if err != nil {
		return savedRoutes{apps: map[string][]byte{}}, false, fmt.Errorf("read routes %s: %w", path, err)
	}
	return h, true, nil
}

// replaceFile replaces the file in one step, so that a reader finds either the old or the new content.
func replaceFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write routes: %w", err)
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write routes %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return nil
}
