"""The robots that are known by their makers: Franka, two Frankas as one, DOS-W1, GimArm and Turtle2.

No driver is loaded. Addresses, serial ports and CAN interfaces are looked at from the node itself; cameras are asked of
their maker's library where it is installed.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Hashable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rlinf_scheduler.errors import HardwareUnreachable
from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType, WholeNumber

# Where libfranka's commands go (Franka Control Interface, "Network").
_FRANKA_PORT = 1337
_NETWORK_INTERFACES = Path("/sys/class/net")

_log = logging.getLogger(__name__)


def _is_address(text: str) -> str:
    ipaddress.ip_address(text)  # a ValueError says what is wrong
    return text


def _texts(value: Any) -> Any:
    """A list of serial numbers, which YAML takes for numbers, as text."""
    if isinstance(value, (list, tuple)):
        return [str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in value]
    return value


Address = Annotated[str, AfterValidator(_is_address)]
Serials = Annotated[list[str], BeforeValidator(_texts)]
Port = Annotated[WholeNumber, Field(ge=1, le=65535)]
NodeRank = Annotated[WholeNumber, Field(ge=0)]
CameraType = Literal["realsense", "zed", "lumos"]


class FrankaConfig(HardwareConfig):
    """The settings of a Franka arm.

    Attributes:
        robot_ip: its address; None: the node's ROBOT_IP, or that of the controller's node.
        camera_serials: its cameras; None: the node's CAMERA_SERIALS, or all that are connected.
        camera_type: whose they are.
        gripper_type: "franka", or "robotiq" at a serial port.
        gripper_connection: that port.
        controller_node_rank: the node that drives the arm; None: its own.
        disable_validate: do not look whether it is there before a launch.
    """

    robot_ip: Address | None = None
    camera_serials: Serials | None = None
    camera_type: CameraType = "realsense"
    gripper_type: str = "franka"
    gripper_connection: str | None = None
    controller_node_rank: NodeRank | None = None
    disable_validate: bool = False


class DualFrankaConfig(HardwareConfig):
    """The settings of two Franka arms that are one robot; the cameras hang on its node.

    Attributes:
        left_robot_ip, right_robot_ip: the arms' addresses; None: the node's LEFT_ROBOT_IP, RIGHT_ROBOT_IP.
        left_camera_serials, right_camera_serials: the cameras at the wrists.
        base_camera_serials: the cameras that look at both.
        camera_type: whose they are where the next three do not say.
        base_camera_type, left_camera_type, right_camera_type: likewise, of some.
        left_gripper_type, right_gripper_type: "franka", or "robotiq" at a serial port.
        left_gripper_connection, right_gripper_connection: that port.
        left_controller_node_rank, right_controller_node_rank: the node that drives the arm; None: its own.
        disable_validate: true: nothing is looked at before a launch; false: what is not there stops it; None: that is
            logged.
    """

    left_robot_ip: Address | None = None
    right_robot_ip: Address | None = None
    left_camera_serials: Serials | None = None
    right_camera_serials: Serials | None = None
    base_camera_serials: Serials | None = None
    camera_type: CameraType = "realsense"
    base_camera_type: CameraType | None = None
    left_camera_type: CameraType | None = None
    right_camera_type: CameraType | None = None
    left_gripper_type: str = "franka"
    right_gripper_type: str = "franka"
    left_gripper_connection: str | None = None
    right_gripper_connection: str | None = None
    left_controller_node_rank: NodeRank | None = None
    right_controller_node_rank: NodeRank | None = None
    disable_validate: bool | None = None


class Dosw1Config(HardwareConfig):
    """The settings of a DOS-W1, two arms behind four gRPC services.

    Attributes:
        robot_url: the services' host.
        left_arm_port, right_arm_port: of the arms that follow.
        left_lead_port, right_lead_port: of the arms that lead.
        camera_serials: its RealSense cameras; None: the node's CAMERA_SERIALS.
        disable_validate: as of `DualFrankaConfig`.
    """

    robot_url: str = "localhost"
    left_arm_port: Port = 50051
    right_arm_port: Port = 50053
    left_lead_port: Port = 50050
    right_lead_port: Port = 50052
    camera_serials: Serials | None = None
    disable_validate: bool | None = None


class GimArmConfig(HardwareConfig):
    """The settings of a GimArm, which is driven over CAN.

    Attributes:
        can_interface: the network interface of its bus.
        arm_variant: which arm it is.
        camera_serials: its cameras; None: the node's CAMERA_SERIALS.
        camera_type: whose they are.
        enable_gripper: whether it has a gripper.
        gripper_type: which.
        controller_node_rank: the node that drives it; None: its own.
        disable_validate: as of `DualFrankaConfig`.
    """

    can_interface: str = "can0"
    arm_variant: Literal["gim_arm", "gim_arm_xl"] = "gim_arm_xl"
    camera_serials: Serials | None = None
    camera_type: Literal["realsense", "zed"] = "realsense"
    enable_gripper: bool = True
    gripper_type: Literal["parallel", "single_side"] = "parallel"
    controller_node_rank: NodeRank | None = None
    disable_validate: bool | None = None


class Turtle2Config(HardwareConfig):
    """The settings of a Turtle2: there are none but its node."""


class KnownRobot(HardwareType):
    """A robot whose settings may come from its node's variables, and which is looked at before a launch."""

    fills_in = True

    def check(self, config: Any, timeout_s: float) -> None:
        """Look at it from its node, as `disable_validate` says.

        Raises:
            HardwareUnreachable: something is not there; the text names all of it.
        """
        failures = self.problems(config, timeout_s)
        if not failures:
            return
        if not self.stops_a_launch(config):
            _log.warning("%s", "; ".join(failures))
            return
        hint = "`disable_validate: true` starts its workers all the same"
        raise HardwareUnreachable([*failures[:-1], f"{failures[-1]}; {hint}"])

    def problems(self, config: Any, timeout_s: float) -> list[str]:
        """What is not there; nothing where the settings say not to look."""
        if getattr(config, "disable_validate", None):
            return []
        found = [problem for look in self.looks(config, timeout_s) if (problem := look())]
        return [f"{self.name} of node {config.node_rank}: {problem}" for problem in found]

    def stops_a_launch(self, config: Any) -> bool:
        """Whether a launch fails of what is not there; else it is logged."""
        return getattr(config, "disable_validate", None) is False

    def looks(self, config: Any, timeout_s: float) -> Iterable[Callable[[], str]]:
        """What is looked at, one after the other: each gives what is wrong, or ""."""
        del config, timeout_s
        return ()


class Franka(KnownRobot):
    """A Franka arm."""

    name = "Franka"
    config_model = FrankaConfig
    identifiers: ClassVar[tuple[str, ...]] = ("robot_ip",)

    def address(self, config: Any) -> str:
        """The arm's."""
        return config.robot_ip or ""

    def identity(self, config: Any) -> Hashable:
        """Its address: no two arms have the same."""
        return str(config.robot_ip) if config.robot_ip else None

    def looks(self, config: Any, timeout_s: float) -> Iterable[Callable[[], str]]:
        """The arm and its gripper, unless another node drives them, and its cameras."""
        if config.controller_node_rank in (None, config.node_rank):
            yield lambda: _no_answer("robot_ip", config.robot_ip, _FRANKA_PORT, timeout_s)
            if config.gripper_type == "robotiq":
                yield lambda: _no_device("gripper_connection", config.gripper_connection)
        yield lambda: _cameras_missing("camera_serials", config.camera_serials, config.camera_type)

    def at_node(self, config: Any) -> Any:
        """With the cameras that are connected, where it names none."""
        if config.camera_serials is not None:
            return config
        found = connected_cameras(config.camera_type)
        return config if found is None else config.model_copy(update={"camera_serials": sorted(found)})


class DualFranka(KnownRobot):
    """Two Franka arms that are one robot."""

    name = "DualFranka"
    config_model = DualFrankaConfig
    identifiers: ClassVar[tuple[str, ...]] = ("left_robot_ip", "right_robot_ip")

    def address(self, config: Any) -> str:
        """The two arms'."""
        return " and ".join(filter(None, (config.left_robot_ip, config.right_robot_ip)))

    def identity(self, config: Any) -> Hashable:
        """Their addresses."""
        addresses = (config.left_robot_ip, config.right_robot_ip)
        return addresses if all(addresses) else None

    def looks(self, config: Any, timeout_s: float) -> Iterable[Callable[[], str]]:
        """The arms and grippers that its own node drives, and the cameras."""
        for side in ("left", "right"):
            yield from _looks_at_arm(config, side, timeout_s)
        for part in ("left", "right", "base"):
            serials = getattr(config, f"{part}_camera_serials")
            kind = getattr(config, f"{part}_camera_type") or config.camera_type
            name = f"{part}_camera_serials"
            yield lambda name=name, serials=serials, kind=kind: _cameras_missing(name, serials, kind)  # type: ignore[misc]


def _looks_at_arm(config: Any, side: str, timeout_s: float) -> Iterable[Callable[[], str]]:
    ip, connection = f"{side}_robot_ip", f"{side}_gripper_connection"
    if getattr(config, f"{side}_controller_node_rank") not in (None, config.node_rank):
        return
    yield lambda: _no_answer(ip, getattr(config, ip), _FRANKA_PORT, timeout_s)
    if getattr(config, f"{side}_gripper_type") == "robotiq":
        yield lambda: _no_device(connection, getattr(config, connection))


class Dosw1(KnownRobot):
    """A DOS-W1."""

    name = "DOSW1"
    config_model = Dosw1Config
    identifiers: ClassVar[tuple[str, ...]] = ("robot_url",)

    def address(self, config: Any) -> str:
        """Its host, with the port of its left arm."""
        return f"{config.robot_url}:{config.left_arm_port}"

    def identity(self, config: Any) -> Hashable:
        """Where its left arm answers; what is local is another one on another node."""
        local = config.node_rank if config.robot_url in ("localhost", "127.0.0.1", "::1") else None
        return (local, config.robot_url, config.left_arm_port)

    def looks(self, config: Any, timeout_s: float) -> Iterable[Callable[[], str]]:
        """Its host and its cameras."""
        yield lambda: _no_answer("robot_url", config.robot_url, config.left_arm_port, timeout_s)
        yield lambda: _cameras_missing("camera_serials", config.camera_serials, "realsense")


class GimArm(KnownRobot):
    """A GimArm."""

    name = "GimArm"
    config_model = GimArmConfig
    identifiers: ClassVar[tuple[str, ...]] = ("can_interface",)

    def address(self, config: Any) -> str:
        """Its bus."""
        return str(config.can_interface)

    def identity(self, config: Any) -> Hashable:
        """Its bus, on the node that drives it."""
        driver = config.node_rank if config.controller_node_rank is None else config.controller_node_rank
        return (driver, config.can_interface)

    def looks(self, config: Any, timeout_s: float) -> Iterable[Callable[[], str]]:
        """Its bus, unless another node drives it, and its cameras."""
        del timeout_s
        if config.controller_node_rank in (None, config.node_rank):
            yield lambda: _no_interface("can_interface", config.can_interface)
        yield lambda: _cameras_missing("camera_serials", config.camera_serials, config.camera_type)


class Turtle2(KnownRobot):
    """A Turtle2."""

    name = "Turtle2"
    config_model = Turtle2Config


def connected_cameras(camera_type: str) -> set[str] | None:
    """The serial numbers of the cameras of a kind that are connected; None where nobody here can say."""
    # The makers' libraries: on few nodes, and nobody else needs them.
    try:
        if camera_type == "realsense":
            rs = import_module("pyrealsense2")
            serial = rs.camera_info.serial_number
            return {str(device.get_info(serial)) for device in rs.context().devices}
        if camera_type == "zed":
            zed = import_module("pyzed.sl")
            return {str(device.serial_number) for device in zed.Camera.get_device_list()}
    except ImportError:
        return None
    return None


def _no_answer(name: str, host: str | None, port: int, timeout_s: float) -> str:
    """What is wrong with a host; one that refuses the connection has answered."""
    if not host:
        return f"{name} is not set, and neither is {name.upper()} on that node"
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return ""
    except TimeoutError:
        return f"{name} {host}: no answer within {timeout_s:g} s"
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return ""
        return f"{name} {host}: {(error.strerror or str(error)).lower()}"


def _no_device(name: str, path: str | None) -> str:
    if not path:
        return f"{name} is not set: at which serial port the gripper is"
    return "" if Path(path).exists() else f"{name} {path}: there is no such device"


def _no_interface(name: str, interface: str) -> str:
    found = interface and (_NETWORK_INTERFACES / interface).exists()
    return "" if found else f"{name} {interface}: there is no such network interface"


def _cameras_missing(name: str, serials: list[str] | None, camera_type: str) -> str:
    found = connected_cameras(camera_type) if serials else None
    if found is None:
        return ""
    missing = [serial for serial in serials or () if serial not in found]
    there = f"connected are {', '.join(sorted(found))}" if found else "none is connected"
    return f"{name}: no {camera_type} camera {', '.join(missing)}; {there}" if missing else ""


ROBOTS: dict[str, HardwareType] = {
    kind.name: kind for kind in (Franka(), DualFranka(), Dosw1(), GimArm(), Turtle2())
}
