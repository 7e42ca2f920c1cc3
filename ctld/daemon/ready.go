package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// announce tells whoever started the controller that it serves: a file that appears whole, and
// systemd's notification when NOTIFY_SOCKET is set.
func announce(file, text string) error {
	if err := notifySystemd("READY=1"); err != nil {
		return err
	}
	if file == "" {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	if err := os.WriteFile(tmp, []byte(text+"\n"), 0o644); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return nil
}

func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}
