"""What `nfk demo` shows: a small trained network, real digits, the table and the figures. Needs `nfk[demo]`."""

from nfk.demo.digits import Digits, digits
from nfk.demo.lenet import digits_lenet
from nfk.demo.show import Shown, show

__all__ = ["Digits", "Shown", "digits", "digits_lenet", "show"]
