package chaos

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clocksCanJump reports whether setClock works here.
const clocksCanJump = true

// setClock shifts the wall clock of one process by a number of whole seconds. Its monotonic clock is not
// changed, as on a machine whose clock is set.
//
// Programs read the clock through the vDSO: code that the kernel maps into them. setClock overwrites the
// function clock_gettime in that process's copy with other code. That code asks the kernel and adds the
// offset.
//
//	endbr64
//	mov  eax, 228        ; clock_gettime
//	syscall
//	test edi, edi        ; CLOCK_REALTIME is 0
//	jnz  end
//	test eax, eax
//	jnz  end
//	mov  rcx, offset
//	add  [rsi], rcx
//	end: ret
func setClock(pid int, offset time.Duration) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("set the clock of process %d: %w", pid, err)
		}
	}()
	code := append([]byte{
		0xf3, 0x0f, 0x1e, 0xfa,
		0xb8, 0xe4, 0x00, 0x00, 0x00,
		0x0f, 0x05,
		0x85, 0xff,
		0x75, 0x11,
		0x85, 0xc0,
		0x75, 0x0d,
		0x48, 0xb9,
	}, binary.LittleEndian.AppendUint64(nil, uint64(int64(offset/time.Second)))...)
	code = append(code, 0x48, 0x01, 0x0e, 0xc3)

	start, end, err := vdsoRange(pid)
	if err != nil {
		return err
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	image := make([]byte, end-start)
	if _, err := mem.ReadAt(image, int64(start)); err != nil {
		return err
	}
	at, err := functionOffset(image, "__vdso_clock_gettime", uint64(len(code)))
	if err != nil {
		return err
	}
	if bytes.Equal(image[at:at+uint64(len(code))], code) {
		return nil
	}
	// No thread may be in the code while it is overwritten.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)) }()
	for range 200 {
		outside, err := stoppedOutside(pid, start, end)
		if err != nil {
			return err
		}
		if outside {
			_, err := mem.WriteAt(code, int64(start+at))
			return err
		}
		if err := errors.Join(syscall.Kill(pid, syscall.SIGCONT), syscall.Kill(pid, syscall.SIGSTOP)); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("its threads do not stop outside of the vDSO")
}

// vdsoRange returns the addresses of the vDSO of a process.
func vdsoRange(pid int) (start, end uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &start, &end)
			return start, end, err
		}
	}
	return 0, 0, errors.New("it has no vDSO")
}

// functionOffset returns the offset of a function that is at least room bytes long.
func functionOffset(image []byte, name string, room uint64) (uint64, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name == name && s.Size >= room && s.Value+s.Size <= uint64(len(image)) {
			return s.Value, nil
		}
	}
	return 0, fmt.Errorf("the vDSO has no %s of %d bytes", name, room)
}

// stoppedOutside reports whether every thread of a process is stopped outside of an address range.
func stoppedOutside(pid int, start, end uint64) (bool, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return false, errors.Join(err, syscall.ESRCH)
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			return false, err
		}
		_, state, _ := bytes.Cut(stat, []byte(") "))
		if !bytes.HasPrefix(state, []byte("T")) {
			return false, nil
		}
		// The last field is the address of the next instruction.
		where, err := os.ReadFile(filepath.Join(task, "syscall"))
		if err != nil {
			return false, err
		}
		fields := strings.Fields(string(where))
		pc, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil || pc >= start && pc < end {
			return false, nil //nolint:nilerr // "running": not yet
		}
	}
	return true, nil
}
